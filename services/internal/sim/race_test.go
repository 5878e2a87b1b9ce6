package sim

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

var (
	rounds       = flag.Int("weir.rounds", 1000, "how many rounds of concurrent deciders run on one node")
	killedRounds = flag.Int("weir.killed", 500, "how many rounds of concurrent deciders run with gates that are killed")
	roundsOn3    = flag.Int("weir.rounds3", 100, "how many rounds of concurrent deciders run on three replicas")
)

const (
	// deciders of a round; one of them is the deadline, and the others are principals.
	deciders   = 16
	cancellers = 2
	approvers  = 7
	// racers are the rounds of one world that run side by side.
	racers = 50
	// deadline of the asks, at which all deciders meet.
	deadline = 5 * time.Second
	// hung is how long a part of a round may take. It is short of the sweep that looks at everything, which would heal
	// what must not happen.
	hung = 3 * time.Minute
)

// TestRaces lets 16 deciders meet at one ask through two gates: approve, decline, expiry and cancel at once. One of
// them wins, each of the others is told who, and the tool runs at most once.
func TestRaces(t *testing.T) {
	t.Parallel()
	tally := &tally{}
	t.Run("one node", func(t *testing.T) {
		for from := 0; from < *rounds; from += racers {
			t.Run(fmt.Sprint(from+1), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					newMeet(t, from, tally, Options{}).race(min(racers, *rounds-from))
				})
			})
		}
	})
	if *rounds >= 200 {
		tally.everybodyWins(t)
	}
}

// TestRacesOverKills lets 2 to 8 deciders meet at one ask while the gates are killed again and again between any two of
// their steps. It comes out as without kills.
func TestRacesOverKills(t *testing.T) {
	t.Parallel()
	tally := &tally{}
	t.Run("one node", func(t *testing.T) {
		for from := 0; from < *killedRounds; from += racers {
			t.Run(fmt.Sprint(from+1), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					m := &meet{tally: tally, patience: 20 * time.Minute}
					m.crowd, m.kills = m.few, true
					m.open(t, from, Options{})
					m.race(min(racers, *killedRounds-from))
				})
			})
		}
	})
	if *killedRounds >= 200 {
		tally.everybodyWins(t)
	}
	t.Logf("%d gates were killed", tally.killed)
}

// TestRacesOnThreeReplicas is TestRaces in real time on a cluster, with services that are spread over its servers. There
// an append may find another one of its chain in flight, and who loses may not see the winner at once.
func TestRacesOnThreeReplicas(t *testing.T) {
	t.Parallel()
	servers := jetstreamtest.StartCluster(t, 3)
	tally := &tally{}
	var next int // connections are made one after the other
	m := newMeet(t, 0, tally, Options{
		Server: servers[0], Settings: jetstream.Settings{Replicas: 3},
		Conn: func(o *jetstream.Options) {
			o.InProcess, o.URL = nil, servers[next%len(servers)].ClientURL()
			next++
		},
	})
	for from := 0; from < *roundsOn3; from += racers {
		m.race(min(racers, *roundsOn3-from))
	}
}

// meet is a world in which deciders meet.
type meet struct {
	w        *World
	tally    *tally
	patience time.Duration            // how long a part of a round may take
	crowd    func() []events.Decision // who meets in a round beside the deadline; an empty one cancels the run
	kills    bool
	respawn  sync.WaitGroup

	mu    sync.Mutex
	rng   *rand.Rand
	notes map[string][]events.Error // by the id of the request that was refused
	taken map[string]bool           // by the id of a decision that was taken as a vote
}

func newMeet(t *testing.T, seed int, tally *tally, o Options) *meet {
	t.Helper()
	m := &meet{tally: tally, patience: hung}
	m.crowd = m.many
	m.open(t, seed, o)
	return m
}

// many are the deciders of a round that all meet at once.
func (m *meet) many() []events.Decision {
	all := make([]events.Decision, deciders-1)
	for i := range len(all) - cancellers {
		all[i] = events.Decline
		if i < approvers {
			all[i] = events.Approve
		}
	}
	return all
}

// few are 1 to 7, of any kind.
func (m *meet) few() []events.Decision {
	all := make([]events.Decision, 1+m.pick(7))
	for i := range all {
		all[i] = []events.Decision{events.Approve, events.Approve, events.Decline, events.Decline, ""}[m.pick(5)]
	}
	return all
}

func (m *meet) open(t *testing.T, seed int, o Options) {
	t.Helper()
	m.rng, m.notes = rand.New(rand.NewPCG(uint64(seed), 2)), map[string][]events.Error{}
	o.Point = m.stall
	o.Gate = func(c *approval.Config) { c.Expires = deadline }
	m.w = New(t, o)
	for _, service := range []string{planner.Name, approval.Name, approval.Name, toolexecutor.Name} {
		m.w.Start(service)
	}
	for i := range deciders {
		stop, err := m.w.Conn().Notes(t.Context(), principal(i), m.hear)
		m.w.must(err)
		t.Cleanup(stop)
	}
}

func principal(i int) string { return fmt.Sprintf("p%02d", i) }

// stall holds a gate back between what it has read and the append that follows it. The steps are coarse, so that
// several handlers go on at the same moment of fake time.
func (m *meet) stall(name string, c *Copy) {
	if c.Service == approval.Name && m.killsNow() {
		m.kill(c)
		return
	}
	if name == "answer.before" || name == "result.before" || name == "end.before" {
		m.w.pause(time.Duration(m.pick(4)) * 100 * time.Millisecond)
	}
}

func (m *meet) killsNow() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kills && m.rng.IntN(1000) < 4*killChance
}

// kill stops a gate at once; another one takes its place.
func (m *meet) kill(c *Copy) {
	c.Kill()
	m.tally.kill()
	m.respawn.Go(func() {
		m.w.pause(time.Second)
		if m.w.T.Context().Err() == nil {
			m.w.Start(approval.Name)
		}
	})
}

func (m *meet) pick(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rng.IntN(n)
}

func (m *meet) hear(e events.Event) {
	var id string
	var why events.Error
	if e.Type == events.TypeOf[events.VoteCast]() {
		m.hearVote(e)
		return
	}
	if d, err := events.Data[events.DecisionRefused](e); e.Type == events.TypeOf[events.DecisionRefused]() && err == nil {
		id, why = d.EventID, d.Error
	} else if d, err := events.Data[events.RunRefused](e); err == nil {
		id, why = d.EventID, d.Error
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notes[id] = append(m.notes[id], why)
}

func (m *meet) told(id string) []events.Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.notes[id]
}

// race runs rounds side by side and checks the log when all are over.
func (m *meet) race(n int) {
	m.w.T.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			r := &meeting{meet: m}
			defer r.tellHung()
			r.run()
			r.check()
		})
	}
	wg.Wait()
	m.mu.Lock()
	m.kills = false
	m.mu.Unlock()
	m.respawn.Wait()
	m.awaitNoEntries()
	m.w.Check(true)
}

// awaitNoEntries waits until no run counts as suspended: entries follow the ends of their runs. What is still there in
// the end is for Check to tell.
func (m *meet) awaitNoEntries() {
	for end := time.Now().Add(m.patience); time.Now().Before(end); m.w.pause(100 * time.Millisecond) {
		if m.entries() == 0 {
			return
		}
	}
}

func (m *meet) entries() int {
	keys, err := m.w.Conn().ListSuspended(m.w.T.Context(), "", "", "")
	m.w.must(err)
	n := 0
	for _, key := range keys {
		if _, _, err := m.w.Conn().Snapshot(m.w.T.Context(), key); !errors.Is(err, jetstream.ErrNotFound) {
			m.w.must(err)
			n++
		}
	}
	return n
}

// meeting is one round.
type meeting struct {
	*meet
	id    string
	call  events.CallID
	ask   events.CallHeld
	moves []move
	end   events.RunEnded
	until time.Time // when everybody must have been told
}

// move is what one principal does.
type move struct {
	who, id  string
	decision events.Decision // empty: it cancels the run
}

func (r *meeting) run() {
	r.id = r.w.Request("refund order 42")
	r.call = refundOf(r.id)
	r.ask = r.w.AwaitAsk(r.call, r.patience)
	crowd := r.crowd()
	r.moves = make([]move, len(crowd))
	at := r.ask.ExpiresAt.Add(time.Duration(r.pick(6)-4) * 100 * time.Millisecond)
	var wg sync.WaitGroup
	for i := range r.moves {
		r.moves[i].who, r.moves[i].decision = principal(i), crowd[i]
		wg.Go(func() {
			r.w.pause(time.Until(at))
			r.send(&r.moves[i])
		})
	}
	wg.Wait()
	r.end = r.w.AwaitEnd(r.id, r.patience)
	r.until = time.Now().Add(r.patience)
}

// tellHung logs how far a run has come that has not ended.
func (r *meeting) tellHung() {
	if r.end.RunID != "" {
		return
	}
	for _, filter := range []string{r.w.Conn().Namespace().MainOf(r.id), r.w.Conn().Namespace().CallsOf(r.id)} {
		for _, e := range r.facts(filter) {
			r.w.T.Logf("%d %s %s", e.Seq, e.Stored.Format(time.StampMilli), e.Place.Subject())
		}
	}
}

func (r *meeting) send(m *move) {
	ns := r.w.Conn().Namespace()
	subject, data := ns.InCancel(m.who, r.id), any(events.CancelRequested{RunID: r.id, Reason: "race"})
	if m.decision != "" {
		subject, data = ns.InDecide(m.who, r.call), events.DecisionRequested{
			Decision:   m.decision,
			ToolCallID: r.call.String(), Fingerprint: r.ask.Fingerprint, Reason: "race",
		}
	}
	o := &events.Origin{Namespace: ns, Service: "test"}
	e, err := o.RequestBy(subject, r.id, m.who, data)
	r.w.must(err)
	m.id = e.ID
	_, err = r.w.Conn().Publish(r.w.T.Context(), subject, e)
	r.w.must(err)
}

// check demands one winner, and that everybody else was told who it was: in a note, and in the log.
func (r *meeting) check() {
	chain := r.facts(r.w.Conn().Namespace().Call(r.call, events.KindAsk).Chain())
	if len(chain) < 2 {
		r.w.T.Errorf("%s: nothing follows the ask", r.call)
		return
	}
	won := chain[1]
	counted := &events.CallAnswered{}
	if won.Place.Kind == events.KindAnswer {
		d, err := events.Data[events.CallAnswered](won)
		r.w.must(err)
		counted = &d
	} else if d, err := events.Data[events.CallFinished](won); err != nil || d.Outcome != events.OutcomeCancelled {
		r.w.T.Errorf("%s: %s %s follows the ask", r.call, won.Place.Kind, d.Outcome)
	}
	r.tally.add(string(counted.Decision))
	for _, m := range r.moves {
		switch {
		case m.decision == "":
			r.checkCancel(m)
		case r.voted(m, won, counted): // one of several
		case m.id != counted.EventID:
			r.checkLoser(m, counted)
		case len(r.told(m.id)) > 0:
			r.w.T.Errorf("%s: %s won with %s, and was refused: %v", r.call, m.who, m.decision, r.told(m.id))
		}
	}
	r.checkEffect(counted.Decision)
}

// facts reads what the log holds under a filter.
func (r *meeting) facts(filter string) (all []events.Event) {
	for seq := uint64(0); ; seq = all[len(all)-1].Seq {
		e, err := r.w.Conn().NextFact(r.w.T.Context(), seq, filter)
		if errors.Is(err, jetstream.ErrNotFound) {
			return all
		}
		r.w.must(err)
		all = append(all, e)
	}
}

// checkLoser demands a note and a fact that name who won.
func (r *meeting) checkLoser(m move, counted *events.CallAnswered) {
	r.awaitNote(m)
	fact := r.w.Await(r.w.Conn().Namespace().Beside(r.call, events.KindRefused, m.id), r.patience)
	d, err := events.Data[events.DecisionRefused](fact)
	r.w.must(err)
	if d.Principal != m.who || d.Decision != m.decision {
		r.w.T.Errorf("%s: %s's %s was refused as %s's %s", r.call, m.who, m.decision, d.Principal, d.Decision)
	}
	for _, told := range append(r.told(m.id), d.Error) {
		if why := r.wrong(told, counted, d.At); why != "" {
			r.w.T.Errorf("%s: %s lost with %s to %q: %s, told %s", r.call, m.who, m.decision, counted.Decision, why, told.Error())
		}
	}
}

// wrong says what is wrong with what a loser was told.
func (r *meeting) wrong(told events.Error, counted *events.CallAnswered, stamped time.Time) string {
	switch told.Code {
	case events.CodeAlreadyDecided:
		if a := told.Answer; a == nil || a.Decision != counted.Decision || a.Principal != counted.Principal {
			return "another winner is named"
		}
	case events.CodeExpired:
		if !stamped.After(r.ask.ExpiresAt) {
			return "the decision came in time"
		}
	case events.CodeRunEnded:
		if counted.Decision != "" || r.end.Outcome != events.RunCancelled {
			return "the run was not cancelled"
		}
	default:
		return "no reason to refuse"
	}
	return ""
}

// checkCancel demands that who asked for a cancel either was the one who ended the run, or was told that it is over.
func (r *meeting) checkCancel(m move) {
	if r.end.Cancel != nil && r.end.Cancel.By == m.who {
		return
	}
	r.awaitNote(m)
	for _, told := range r.told(m.id) {
		if told.Code != events.CodeRunEnded || !strings.Contains(told.Message, string(r.end.Outcome)) {
			r.w.T.Errorf("%s: %s cancelled too late (the run is %s), told %s", r.call, m.who, r.end.Outcome, told.Error())
		}
	}
}

func (r *meeting) awaitNote(m move) {
	for ; time.Now().Before(r.until); r.w.pause(50 * time.Millisecond) {
		if len(r.told(m.id)) > 0 {
			return
		}
	}
	r.w.T.Errorf("%s: %s lost with %q and was not told", r.call, m.who, m.decision)
}

func (r *meeting) checkEffect(won events.Decision) {
	least, most := 0, 0
	if won == events.Approve {
		most = 1
		if r.end.Outcome == events.RunCompleted {
			least = 1
		}
	}
	if n := r.w.Effects.Of(r.call.String()); n < least || n > most {
		r.w.T.Errorf("%s: the tool ran %d times, want %d to %d", r.call, n, least, most)
	}
}

// tally counts winners.
type tally struct {
	mu     sync.Mutex
	wins   map[string]int
	killed int
}

func (t *tally) kill() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.killed++
}

func (t *tally) add(decision string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wins == nil {
		t.wins = map[string]int{}
	}
	t.wins[decision]++
}

// everybodyWins demands that each kind of decider has won sometimes: else the rounds were no races.
func (ta *tally) everybodyWins(t *testing.T) {
	t.Helper()
	t.Logf("winners: %v", ta.wins)
	for _, kind := range []events.Decision{events.Approve, events.Decline, events.Expired, ""} {
		if ta.wins[string(kind)] == 0 {
			t.Errorf("%q never won", kind)
		}
	}
}
