package main

import (
	"flag"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

var suspended = flag.Int("weir.suspended", 1000, "how many runs are suspended when everything is killed")

// TestB10_6KillEverythingWhileSuspended kills the NATS server and all services while runs wait for people. When all is
// started again on the same files, the runs are listed page by page, and each is decided and ends as it should.
func TestB10_6KillEverythingWhileSuspended(t *testing.T) {
	f := startFleet(t, 1)
	runs := make([]string, *suspended)
	var asking sync.WaitGroup
	for from := range 16 {
		asking.Go(func() {
			for i := from; i < len(runs); i += 16 {
				var err error
				if runs[i], err = f.request(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	asking.Wait()
	if n := f.awaitSuspended(len(runs)); n != len(runs) {
		t.Fatalf("%d runs are suspended, want %d", n, len(runs))
	}

	f.killAll()
	f.awaitSuspended(len(runs))
	listed := f.pages(100)
	slices.Sort(runs)
	if got := runIDs(listed); !slices.Equal(got, runs) {
		t.Fatalf("%d of %d runs are listed after the restart, or others", len(got), len(runs))
	}
	if n := len(f.ledger.all()); n != 0 {
		t.Errorf("%d refunds were paid before anybody decided", n)
	}

	declined := map[string]bool{}
	for i, run := range listed {
		d := client.Decision{
			Decision: events.Approve, ToolCallID: run.ToolCalls[0].ToolCallID,
			Fingerprint: run.ToolCalls[0].Ask.Fingerprint,
		}
		if i%2 == 1 {
			d.Decision, d.Reason, declined[d.ToolCallID] = events.Decline, "not this one", true
		}
		if _, err := f.alice.Decide(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	for _, run := range f.awaitEnds(runs, 2*time.Minute) {
		t.Errorf("run %s has not ended", run)
	}
	f.awaitNoEntries()
	t.Logf("reached: %v", f.check(runs))
	for _, run := range runs {
		call := refundOf(run).String()
		if n := f.ledger.all()[call]; (n == 1) == declined[call] {
			t.Errorf("call %s was paid %d times, and declined: %v", call, n, declined[call])
		}
	}
}

// awaitSuspended waits until so many runs are suspended, and returns how many are.
func (f *fleet) awaitSuspended(want int) (n int) {
	for end := time.Now().Add(2 * time.Minute); n < want && time.Now().Before(end); pause(f.t.Context(), 200*time.Millisecond) {
		if page, err := f.alice.Suspended(f.t.Context(), client.Filter{PerPage: 1}); err == nil {
			n = page.Total
		}
	}
	return n
}

// pages lists the suspended runs page by page.
func (f *fleet) pages(size int) (all []client.SuspendedRun) {
	f.t.Helper()
	for page := 0; ; page++ {
		p, err := f.alice.Suspended(f.t.Context(), client.Filter{Page: page, PerPage: size})
		f.must(err)
		if len(p.Runs) == 0 {
			return all
		}
		all = append(all, p.Runs...)
	}
}

func runIDs(runs []client.SuspendedRun) (ids []string) {
	for _, run := range runs {
		ids = append(ids, run.RunID)
	}
	slices.Sort(ids)
	return ids
}
