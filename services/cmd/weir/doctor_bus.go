package main

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// clock compares this machine's clock with the server's, by which deadlines are judged.
func (d *doctor) clock(ctx context.Context) error {
	sent := time.Now()
	now, err := d.conn.Now(ctx)
	if err != nil {
		return err
	}
	took := time.Since(sent)
	skew := now.Sub(sent.Add(took / 2)).Round(time.Millisecond)
	if skew.Abs() > maxSkew+took {
		d.tell(levelWarn, "set the clocks by NTP", "the server's clock is %v away from this one", skew)
		return nil
	}
	d.tell(levelOK, "", "the server answers within %v, as user %s", took.Round(time.Microsecond*100), d.conn.User())
	return nil
}

func (d *doctor) streams(ctx context.Context) error {
	drifts, err := d.conn.Verify(ctx, d.settings)
	if err != nil {
		return err
	}
	for _, drift := range drifts {
		do := "weir stream provision, with the same weir.yaml"
		if drift.Field == "subjects" && strings.HasPrefix(drift.Got, "overlapping") {
			do = "remove those subjects from that stream: who can publish there can store what looks like a fact"
		}
		drift.Got, drift.Want = readable(drift.Field, drift.Got), readable(drift.Field, drift.Want)
		d.tell(levelError, do, "%s", drift)
	}
	if len(drifts) == 0 {
		d.tell(levelOK, "", "all streams and consumers of namespace %s are as they must be", d.conn.Namespace())
	}
	return nil
}

// durability tells what a power loss may take, as far as a client can see it.
func (d *doctor) durability(ctx context.Context) error {
	drifts, err := d.conn.Verify(ctx, jetstream.Settings{Replicas: 1, AsyncChunks: true})
	if err != nil {
		return err
	}
	runs, replicas, async := d.conn.Namespace().Store(events.StreamRuns), "1", true
	for _, drift := range drifts {
		switch {
		case drift.Store == runs && drift.Field == "num_replicas":
			replicas = drift.Got
		case drift.Field == "persist_mode":
			async = false
		}
	}
	switch {
	case replicas != "1":
		d.tell(levelOK, "", "%s replicas: the log survives the loss of one server", replicas)
	case async:
		d.tell(levelOK, "", "one server, chunks written behind their acks: meant for sync_interval always")
	default:
		d.tell(levelWarn, "set sync_interval: always in the server's jetstream section, or run three replicas; weir dev needs neither",
			"one server, and a client cannot see whether it syncs each message: by default a power loss takes up to two "+
				"minutes of facts, a killed process none")
	}
	return nil
}

// backlog looks at how far each durable is behind.
func (d *doctor) backlog(ctx context.Context) error {
	behind := 0
	for _, store := range jetstream.Topology(d.conn.Namespace(), d.settings).Stores {
		for _, consumer := range store.Consumers {
			b, err := d.conn.Backlog(ctx, store.Name, consumer.Durable)
			if err != nil {
				return err
			}
			if b.Outstanding > maxBacklog {
				behind++
				d.tell(levelWarn, "add copies of the service that consumes it", "%s on %s is %d deliveries behind",
					consumer.Durable, store.Name, b.Outstanding)
			}
		}
	}
	if behind == 0 {
		d.tell(levelOK, "", "no consumer is more than %d deliveries behind", maxBacklog)
	}
	return nil
}

// keys compares who signed the latest asks with the keys that are known to be right.
func (d *doctor) keys(ctx context.Context) error {
	subjects, err := d.conn.Subjects(ctx, d.conn.Namespace().EveryCall(events.KindAsk))
	if err != nil {
		return err
	}
	slices.SortFunc(subjects, func(a, b string) int { return cmp.Compare(b, a) }) // ids begin with their time
	signers := map[string]int{}
	for _, subject := range subjects[:min(len(subjects), maxSigned)] {
		p, err := events.ParsePlace(subject)
		if err != nil {
			continue
		}
		if fact, err := d.conn.Fact(ctx, p); err == nil {
			signers[fact.Signature.Key]++
		}
	}
	for _, key := range slices.Sorted(maps.Keys(signers)) {
		switch _, known := d.gateKeys[key]; {
		case key == "":
			d.tell(levelError, "find out who may publish facts; nothing that it says counts", "%d asks are not signed", signers[key])
		case len(d.gateKeys) == 0:
			d.tell(levelOK, "", "%d asks signed by %s", signers[key], key)
		case known:
			d.tell(levelOK, "", "%d asks signed by %s, which is known", signers[key], key)
		default:
			d.tell(levelError, "stop that gate, or give its key to executors with --gate-public-key", "%d asks signed by %s, which is not known",
				signers[key], key)
		}
	}
	if len(signers) == 0 {
		d.tell(levelOK, "", "no asks in the log yet")
	}
	return nil
}

// asks counts what waits for people, above all calls of which nobody knows whether they happened.
func (d *doctor) asks(ctx context.Context) error {
	keys, err := d.conn.ListSuspended(ctx, "", "", "")
	if err != nil {
		return err
	}
	doubtful := 0
	for _, key := range keys[:min(len(keys), maxBacklog)] {
		snap, err := d.conn.Listed(ctx, key)
		if err != nil {
			continue // decided in between
		}
		for _, a := range snap.Asks {
			if a.Kind == events.AskInDoubt && a.RunID == snap.RunID {
				doubtful++
				d.tell(levelWarn, "find out whether it happened, then: weir approvals info "+a.ToolCallID,
					"nobody knows whether %s ran (%s)", a.ToolName, a.ToolCallID)
			}
		}
	}
	d.tell(levelOK, "", "%d runs wait for people, %d calls in doubt", len(keys), doubtful)
	return nil
}

func (d *doctor) dead(ctx context.Context) error {
	letters, err := d.conn.ListDead(ctx, 0, maxBacklog)
	if err != nil {
		return err
	}
	if len(letters) == 0 {
		d.tell(levelOK, "", "none")
		return nil
	}
	last := letters[len(letters)-1]
	do := cmp.Or(last.Command, "read them: nats stream view "+d.conn.Namespace().Store(events.StreamDead))
	d.tell(levelWarn, do, "%d deliveries were given up; the last by %s: %s", len(letters), last.Service, last.Reason)
	return nil
}

// permissions tells what this user was refused while the doctor looked.
func (d *doctor) permissions(context.Context) error {
	for _, v := range d.conn.Violations() {
		d.tell(levelError, "allow it to the user, or run the doctor as another one", "user %s may not %s to %s", v.User,
			v.Operation, v.Subject)
	}
	if len(d.conn.Violations()) == 0 {
		d.tell(levelOK, "", "user %s was refused nothing", d.conn.User())
	}
	return nil
}
