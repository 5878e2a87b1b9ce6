package main

import (
	"context"
	"flag"
	"sync"
	"testing"
	"time"
)

var kills = flag.Int("weir.kills", 250, "how many processes are killed at random while runs are under way")

const (
	// killEvery is the pause between two kills. What a killed process had fetched comes again after half a minute, so
	// the kills go on longer than that.
	killEvery = 200 * time.Millisecond
	// leastRuns are asked for, and more when there are more kills.
	leastRuns = 300
)

// TestKillProcesses kills a random process five times a second, by SIGKILL: the NATS server, or one of two copies of
// each service. Meanwhile runs are asked for, and people decide. Nothing that was acknowledged may be lost, and nothing
// may be paid twice. It takes all that the machine has, so no other test runs beside it.
func TestKillProcesses(t *testing.T) {
	f := startFleet(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go f.decide(ctx)

	runs := make([]string, max(leastRuns, *kills))
	during := time.Duration(*kills) * killEvery / 2
	var asking sync.WaitGroup
	for i := range runs {
		asking.Go(func() {
			pause(t.Context(), during*time.Duration(i)/time.Duration(len(runs)))
			var err error
			if runs[i], err = f.request(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	f.killRandom(*kills, killEvery)
	asking.Wait()
	t.Logf("%d kills; %d of %d runs were paid", *kills, len(f.ledger.all()), len(runs))
	began := time.Now()
	open := f.awaitEnds(runs, 3*time.Minute)
	t.Logf("%d have not ended %v after the last kill", len(open), time.Since(began).Round(time.Second))
	for _, run := range open {
		t.Errorf("run %s is lost: %s", run, f.story(run))
	}
	if len(open) > 0 {
		f.tell()
	}
	f.awaitNoEntries()
	t.Logf("reached: %v", f.check(runs))
}
