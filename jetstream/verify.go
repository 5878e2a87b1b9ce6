package jetstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/events"
)

const (
	// apiTime is how long one request of the JetStream API may take: a cluster places a store first.
	apiTime = 5 * time.Second
	// apiRetry is how much longer than appends such requests are tried again: after an outage stores take writes
	// before they can be made or changed.
	apiRetry = 2
)

// Drift is a setting that is not as it must be. Field is empty when the store or consumer is missing.
type Drift struct {
	Store, Consumer  string // full names
	Field, Want, Got string // the field as NATS names it
}

// String is the drift as a sentence.
func (d Drift) String() string {
	what := "stream " + d.Store
	if d.Consumer != "" {
		what = "consumer " + d.Consumer + " of " + what
	}
	if d.Field == "" {
		return what + " is missing"
	}
	return fmt.Sprintf("%s: %s is %s, must be %s", what, d.Field, d.Got, d.Want)
}

// streamFields are the settings of a stream that Weir depends on. Placement, compression and the like are the
// operator's.
var streamFields = []string{
	"subjects", "retention", "max_consumers", "max_msgs", "max_bytes", "discard", "discard_new_per_subject", "max_age",
	"max_msgs_per_subject", "max_msg_size", "storage", "num_replicas", "no_ack", "duplicate_window", "mirror",
	"sources", "sealed", "deny_delete", "deny_purge", "allow_rollup_hdrs", "subject_transform", "republish",
	"allow_direct", "mirror_direct", "allow_msg_ttl", "subject_delete_marker_ttl", "allow_msg_counter",
	"allow_atomic", "allow_msg_schedules", "persist_mode", "allow_batched",
}

var consumerFields = []string{
	"deliver_policy", "opt_start_seq", "opt_start_time", "ack_policy", "ack_wait", "max_deliver", "backoff",
	"filter_subject", "filter_subjects", "replay_policy", "rate_limit_bps", "max_ack_pending", "headers_only",
	"max_batch", "max_expires", "max_bytes", "inactive_threshold", "mem_storage", "deliver_subject",
	"deliver_group", "pause_until", "priority_policy",
}

// config is a configuration as the server writes it, fields that this client does not know included.
type config map[string]any

func toConfig(v any) (config, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	return readConfig(raw)
}

func readConfig(raw []byte) (config, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber() // sizes are beyond what a float holds
	var c config
	if err := dec.Decode(&c); err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return c, nil
}

// text is a setting in a form that can be compared and shown. Absent, null and zero are the same.
func (c config) text(field string) string {
	v := c[field]
	if list, ok := v.([]any); ok && (field == "subjects" || field == "filter_subjects") {
		sorted := slices.Clone(list)
		slices.SortFunc(sorted, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		v = sorted
	}
	text, err := events.Marshal(v)
	if err != nil {
		return err.Error() // what was decoded can be encoded
	}
	switch string(text) {
	case "null", "false", "0", `""`, "[]", "{}", `"default"`:
		return "unset"
	}
	return string(text)
}

// differences compares the fields, except those that were left open.
func differences(want, got config, fields, open []string) []Drift {
	var drifts []Drift
	for _, field := range fields {
		if w, g := want.text(field), got.text(field); w != g && !slices.Contains(open, field) {
			drifts = append(drifts, Drift{Field: field, Want: w, Got: g})
		}
	}
	return drifts
}

// adopt is got with the drifted fields as they must be.
func adopt(want, got config, drifts []Drift) config {
	merged := maps.Clone(got)
	for _, d := range drifts {
		if v, ok := want[d.Field]; ok {
			merged[d.Field] = v
		} else {
			delete(merged, d.Field)
		}
	}
	return merged
}

// Ensure makes what is missing and changes what has drifted. It may be called again, also by several at once. What the
// server cannot change, such as the retention of an existing stream, is an error that names the field.
func (c *Conn) Ensure(ctx context.Context, s Settings) error {
	for _, store := range Topology(c.ns, c.withReplicas(s)).Stores {
		if err := c.ensureStream(ctx, store); err != nil {
			return fmt.Errorf("stream %s: %w", store.Config.Name, err)
		}
		for _, consumer := range store.Consumers {
			if err := c.ensureConsumer(ctx, store.Config.Name, consumer); err != nil {
				return fmt.Errorf("consumer %s of stream %s: %w", consumer.Durable, store.Config.Name, err)
			}
		}
	}
	return nil
}

// withReplicas lets the connection's options decide what the settings leave open.
func (c *Conn) withReplicas(s Settings) Settings {
	if s.Replicas == 0 && c.opts.Replicas > 1 {
		s.Replicas = c.opts.Replicas
	}
	return s
}

func (c *Conn) ensureStream(ctx context.Context, store Store) error {
	want, err := toConfig(store.Config)
	if err != nil {
		return err
	}
	name := store.Config.Name
	got, err := c.streamConfig(ctx, name)
	if isMissing(err) {
		return c.change(ctx, "STREAM.CREATE."+name, want)
	}
	if err != nil {
		return err
	}
	drifts := differences(want, got, streamFields, store.open)
	if len(drifts) == 0 {
		return nil
	}
	return explain(c.change(ctx, "STREAM.UPDATE."+name, adopt(want, got, drifts)), drifts)
}

func (c *Conn) ensureConsumer(ctx context.Context, stream string, consumer natsjs.ConsumerConfig) error {
	want, err := toConfig(consumer)
	if err != nil {
		return err
	}
	got, err := c.consumerConfig(ctx, stream, consumer.Durable)
	var drifts []Drift
	switch {
	case isMissing(err):
		got = want
	case err != nil:
		return err
	default:
		if drifts = differences(want, got, consumerFields, nil); len(drifts) == 0 {
			return nil
		}
	}
	request := map[string]any{"stream_name": stream, "config": adopt(want, got, drifts)}
	return explain(c.change(ctx, "CONSUMER.CREATE."+stream+"."+consumer.Durable, request), drifts)
}

// change sends a request that changes something, with more patience than an append has.
func (c *Conn) change(ctx context.Context, verb string, request any) error {
	return c.persistFor(ctx, apiRetry*c.opts.Retry, func(ctx context.Context) error {
		return c.call(ctx, verb, request, nil)
	})
}

func explain(err error, drifts []Drift) error {
	if err == nil || len(drifts) == 0 {
		return err
	}
	var text []string
	for _, d := range drifts {
		text = append(text, fmt.Sprintf("%s is %s, must be %s", d.Field, d.Got, d.Want))
	}
	return fmt.Errorf("%s: %w", strings.Join(text, "; "), err)
}

// isMissing tells a store or consumer that is not there from one that does not answer.
func isMissing(err error) bool {
	api, ok := errors.AsType[*natsjs.APIError](err)
	return ok && (api.ErrorCode == natsjs.JSErrCodeStreamNotFound || api.ErrorCode == natsjs.JSErrCodeConsumerNotFound)
}

func (c *Conn) streamConfig(ctx context.Context, name string) (config, error) {
	return c.configOf(ctx, "STREAM.INFO."+name)
}

func (c *Conn) consumerConfig(ctx context.Context, stream, name string) (config, error) {
	return c.configOf(ctx, "CONSUMER.INFO."+stream+"."+name)
}

func (c *Conn) configOf(ctx context.Context, verb string) (config, error) {
	var info struct {
		Config json.RawMessage `json:"config"`
	}
	err := c.persistFor(ctx, apiRetry*c.opts.Retry, func(ctx context.Context) error {
		return c.call(ctx, verb, nil, &info)
	})
	if err != nil {
		return nil, err
	}
	return readConfig(info.Config)
}

// Verify reports what is not as the settings say, and changes nothing: a drifted or missing store, a missing durable,
// and a foreign stream that takes the subjects on which stored facts are republished. An error means that it could
// not look.
func (c *Conn) Verify(ctx context.Context, s Settings) ([]Drift, error) {
	var drifts []Drift
	for _, store := range Topology(c.ns, c.withReplicas(s)).seen(s).Stores {
		found, err := c.verifyStore(ctx, store)
		if err != nil {
			return nil, fmt.Errorf("verify stream %s: %w", store.Config.Name, err)
		}
		drifts = append(drifts, found...)
	}
	if s.Service != "" { // only the provisioner may list streams
		return drifts, nil
	}
	foreign, err := c.listeners(ctx)
	if err != nil {
		return nil, fmt.Errorf("verify: list streams: %w", err)
	}
	return append(drifts, foreign...), nil
}

func (c *Conn) verifyStore(ctx context.Context, store Store) ([]Drift, error) {
	name := store.Config.Name
	var drifts []Drift
	if !store.hidden {
		got, err := c.streamConfig(ctx, name)
		found, err := compare(store.Config, got, err, streamFields, store.open)
		if err != nil {
			return nil, err
		}
		drifts = append(drifts, found...)
	}
	for _, consumer := range store.Consumers {
		got, err := c.consumerConfig(ctx, name, consumer.Durable)
		found, err := compare(consumer, got, err, consumerFields, nil)
		if err != nil {
			return nil, fmt.Errorf("consumer %s: %w", consumer.Durable, err)
		}
		for i := range found {
			found[i].Consumer = consumer.Durable
		}
		drifts = append(drifts, found...)
	}
	for i := range drifts {
		drifts[i].Store = name
	}
	return drifts, nil
}

// compare judges an answer to a request for a configuration.
func compare(plan any, got config, err error, fields, open []string) ([]Drift, error) {
	if isMissing(err) {
		return []Drift{{}}, nil
	}
	if err != nil {
		return nil, err
	}
	want, err := toConfig(plan)
	if err != nil {
		return nil, err
	}
	return differences(want, got, fields, open), nil
}

// listeners are the streams that take the subjects on which the server republishes stored facts. Whoever can publish
// into one can store what looks like a fact.
func (c *Conn) listeners(ctx context.Context) ([]Drift, error) {
	var names struct {
		Streams []string `json:"streams"`
	}
	err := c.persistFor(ctx, apiRetry*c.opts.Retry, func(ctx context.Context) error {
		return c.call(ctx, "STREAM.NAMES", map[string]string{"subject": c.ns.RunAll()}, &names)
	})
	var drifts []Drift
	for _, name := range names.Streams {
		drifts = append(drifts, Drift{
			Store: name, Field: "subjects", Got: "overlapping " + c.ns.RunAll(),
			Want: "without them, as these are stored facts republished",
		})
	}
	return drifts, err
}

// ConsumerCount is how many consumers the namespace's streams have. It does not grow with runs: a waiting run has none.
func (c *Conn) ConsumerCount(ctx context.Context) (int, error) {
	count := 0
	for _, store := range Topology(c.ns, Settings{}).Stores {
		var info struct {
			State struct {
				Consumers int `json:"consumer_count"`
			} `json:"state"`
		}
		if err := c.call(ctx, "STREAM.INFO."+store.Config.Name, nil, &info); err != nil {
			return 0, fmt.Errorf("count consumers of %s: %w", store.Name, err)
		}
		count += info.State.Consumers
	}
	return count, nil
}
