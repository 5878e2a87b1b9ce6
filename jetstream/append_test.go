package jetstream_test

import (
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

func TestAppend(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{})
	ask := stored(t, c, events.First(ns.Call(call("r1"), events.KindAsk)), fact(t, ns.Call(call("r1"), events.KindAsk)))
	answer := fact(t, ns.Call(call("r1"), events.KindAnswer))
	got := stored(t, c, events.After(ask), answer)
	other := fact(t, ns.Call(call("r1"), events.KindAnswer))
	lost, err := c.Append(t.Context(), events.After(ask), other)
	if err != nil || lost.Outcome != jetstream.Lost || lost.Last.ID != got.ID || lost.Last.Seq != got.Seq {
		t.Errorf("second answer: %v, %v", lost, err)
	}
	again, err := c.Append(t.Context(), events.After(ask), answer)
	if err != nil || again.Outcome != jetstream.Stored || again.Last.Seq != got.Seq || again.Last.Stored.IsZero() {
		t.Errorf("the same answer again: %v, %v", again, err)
	}
}

func BenchmarkAppend(b *testing.B) {
}
