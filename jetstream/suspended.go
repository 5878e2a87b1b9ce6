package jetstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

// snapshotValue is a snapshot as the bucket holds it: whole, or with what a run has said so far as a blob.
type snapshotValue struct {
	DataRef string `json:"dataref,omitempty"` // digest of what has grown
	events.Snapshot
}

// PutSnapshot stores the snapshot of a suspended run if the entry still has revision prev, 0 when there must be none,
// and returns the new revision. [ErrConflict] says that somebody else has written the entry: read it and decide again.
// After a lost reply it may also mean that ours was stored and has been replaced since.
// Writer and Size are filled in.
func (c *Conn) PutSnapshot(ctx context.Context, s *events.Snapshot, prev uint64) (uint64, error) {
	out := *s
	out.Writer = events.NewID(time.Now())
	value, err := c.encodeSnapshot(ctx, out)
	if err != nil {
		return 0, fmt.Errorf("put snapshot of run %s: %w", s.RunID, err)
	}
	key := events.SuspendedKey(s.AgentID, s.ResourceID, s.ThreadID, s.RootRunID, s.RunID)
	ours := func(e entry) bool { return writerOf(e.value) == out.Writer }
	rev, err := c.bucket(events.BucketSuspended).replace(ctx, key, &nats.Msg{Data: value}, prev, ours)
	if err != nil {
		return 0, fmt.Errorf("put snapshot of run %s: %w", s.RunID, err)
	}
	return rev, nil
}

func writerOf(value []byte) string {
	var v struct {
		Writer string `json:"writer"`
	}
	_ = json.Unmarshal(value, &v) // a foreign value has another writer
	return v.Writer
}

func (c *Conn) encodeSnapshot(ctx context.Context, s events.Snapshot) ([]byte, error) {
	s.Size = 0
	value, err := events.Marshal(snapshotValue{Snapshot: s})
	if err != nil {
		return nil, err
	}
	size := len(value)
	if size > events.MaxInline {
		if value, err = c.encodeInParts(ctx, s); err != nil {
			return nil, err
		}
	}
	return withSize(value, size), nil
}

// encodeInParts moves what has grown into a blob. It is stored before the entry that refers to it.
func (c *Conn) encodeInParts(ctx context.Context, s events.Snapshot) ([]byte, error) {
	rest, ref, err := c.putGrown(ctx, &s.State)
	if err != nil {
		return nil, err
	}
	s.State = rest
	return events.Marshal(snapshotValue{DataRef: ref, Snapshot: s})
}

// putGrown stores what has grown in a state as a blob.
func (c *Conn) putGrown(ctx context.Context, st *events.State) (rest events.State, ref string, err error) {
	rest, grown := st.Split()
	body, err := events.Marshal(grown)
	if err == nil {
		ref, err = c.PutBlob(ctx, body)
	}
	return rest, ref, err
}

// getGrown puts back what has grown. It was stored before what refers to it, so a blob that is not there shows later.
func (c *Conn) getGrown(ctx context.Context, st *events.State, ref string) error {
	var grown events.Grown
	body, err := c.referred(ctx, ref)
	if err == nil {
		err = decodeExact(body, &grown)
	}
	if err != nil {
		return err
	}
	st.Join(grown)
	return nil
}

// ShrinkCarry makes what a carry says fit into a fact: a large state goes to a blob, which is stored before the fact.
func (c *Conn) ShrinkCarry(ctx context.Context, d events.RunCarried) (events.RunCarried, error) {
	raw, err := events.Marshal(d)
	if err != nil || len(raw) <= events.MaxInline {
		return d, err
	}
	if d.State, d.DataRef, err = c.putGrown(ctx, &d.State); err != nil {
		return d, fmt.Errorf("carry run %s: %w", d.RunID, err)
	}
	return d, nil
}

// carriedState is the state that a carry holds, whole.
func (c *Conn) carriedState(ctx context.Context, carry events.Event) (*events.State, error) {
	d, err := events.Data[events.RunCarried](carry)
	if err != nil {
		return nil, err
	}
	if d.DataRef != "" {
		if err := c.getGrown(ctx, &d.State, d.DataRef); err != nil {
			return nil, fmt.Errorf("state of run %s: %w", d.RunID, err)
		}
	}
	return events.CarriedState(d, carry)
}

// noSize ends the JSON of a snapshot whose size is not known yet.
var noSize = []byte(`"size":0}`)

// withSize writes the size into the encoded value, instead of encoding it a second time.
func withSize(value []byte, size int) []byte {
	head, ok := bytes.CutSuffix(value, noSize)
	if !ok {
		return value
	}
	return append(strconv.AppendInt(append(head, `"size":`...), int64(size), 10), '}')
}

// Snapshot reads an entry by its key, from the leader, with its revision; [ErrNotFound] when there is none. An entry of a
// later release is refused with [events.ErrNewer]: who would go on from it, or write it again, would lose what it says.
func (c *Conn) Snapshot(ctx context.Context, key string) (*events.Snapshot, uint64, error) {
	e, err := c.bucket(events.BucketSuspended).get(ctx, key)
	if err != nil {
		return nil, 0, fmt.Errorf("read snapshot %s: %w", key, err)
	}
	var v snapshotValue
	err = newer(e.value)
	if err == nil {
		err = decodeExact(e.value, &v)
	}
	if err == nil {
		err = v.Upgrade()
	}
	if err == nil && v.DataRef != "" {
		err = c.getGrown(ctx, &v.State, v.DataRef)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read snapshot %s: %w", key, err)
	}
	return &v.Snapshot, e.rev, nil
}

// newer refuses a value of a later release before anything else of it is read.
func newer(value []byte) error {
	var v struct {
		V int `json:"v"`
	}
	if json.Unmarshal(value, &v) == nil && v.V > events.SnapshotVersion {
		return (&events.State{V: v.V}).Upgrade()
	}
	return nil
}

// listedValue is an entry as lists need it: without what the run has said so far. Each ask is read apart, so that one that
// a later release has written otherwise hides itself only.
type listedValue struct {
	events.Snapshot
	Messages unread            `json:"messages"`
	Calls    unread            `json:"calls"`
	Tasks    unread            `json:"tasks"`
	Asks     []json.RawMessage `json:"asks"`
}

// unread is a part of a value that is passed over.
type unread struct{}

// UnmarshalJSON takes anything.
func (*unread) UnmarshalJSON([]byte) error { return nil }

// Listed reads what lists show of an entry, from the leader; [ErrNotFound] when there is none. It costs one read however
// much the run has said. An entry of a later release is shown as far as it can be read.
func (c *Conn) Listed(ctx context.Context, key string) (*events.Snapshot, error) {
	e, err := c.bucket(events.BucketSuspended).get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("read entry %s: %w", key, err)
	}
	var v listedValue
	if err := decodeExact(e.value, &v); err != nil && v.RunID == "" {
		return nil, fmt.Errorf("read entry %s: %w", key, err)
	}
	for _, raw := range v.Asks {
		var a events.OpenAsk
		if decodeExact(raw, &a) == nil {
			v.Snapshot.Asks = append(v.Snapshot.Asks, a)
		}
	}
	return &v.Snapshot, nil
}

// decodeExact keeps numbers in untyped places as they are written.
func decodeExact(value []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	return dec.Decode(into)
}

// DeleteSnapshot removes an entry if it still has revision rev, 0 for whatever is there. One that is gone already is no
// error.
func (c *Conn) DeleteSnapshot(ctx context.Context, key string, rev uint64) error {
	b := c.bucket(events.BucketSuspended)
	err := b.remove(ctx, key, rev)
	if errors.Is(err, ErrConflict) {
		if _, getErr := b.changed(ctx, key, rev); errors.Is(getErr, ErrNotFound) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("delete snapshot %s: %w", key, err)
	}
	return nil
}

// ListSuspended lists the keys of suspended runs, sorted: of an agent, a resource, a thread, each of which may be empty
// for all. A key whose entry has just been deleted may still be among them; reading it gives [ErrNotFound].
func (c *Conn) ListSuspended(ctx context.Context, agent, resource, thread string) ([]string, error) {
	keys, err := c.bucket(events.BucketSuspended).keys(ctx, events.SuspendedFilter(agent, resource, thread))
	if err != nil {
		return nil, fmt.Errorf("list suspended runs: %w", err)
	}
	return keys, nil
}
