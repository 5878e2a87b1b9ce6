package events

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

var hostileIDs = []string{
	"*", ">", "a.>", "a.*", ".", "a.b", " ", "a b", "\t", "\r\n", "\x00", "é", "日本", "\xff", "a/b", "=0",
	"=agent", "=auto", "=b", "=bmfrgg", "=h", "=", "a=1-1", "$JS.API", "%2E", strings.Repeat("x", 65),
	strings.Repeat("x.", 2048), strings.Repeat("*", 4096),
}

var reserved = []string{TokenAbsent, TokenAuto, TokenPlanner, TokenAgentPool, TokenTool, TokenProbe, TokenRun}

// isClean reports whether a token can stand between two dots without meaning anything else.
func isClean(token string) bool {
	return token != "" && len(token) <= MaxToken && !strings.ContainsFunc(token, func(r rune) bool {
		return !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=", r)
	})
}

func TestToken(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"":                      TokenAbsent,
		"abc-DEF_123":           "abc-DEF_123",
		strings.Repeat("a", 64): strings.Repeat("a", 64),
		"a.b":                   "=bmexge",
		"=agent":                "=bhvqwozlooq",
	} {
		if got := Token(id); got != want {
			t.Errorf("Token(%q) = %q, want %q", id, got, want)
		}
	}
	for _, id := range hostileIDs {
		token := Token(id)
		if !isClean(token) || !strings.HasPrefix(token, "=b") && !strings.HasPrefix(token, "=h") {
			t.Errorf("Token(%q) = %q", id, token)
		}
	}
}

// 100,000 random ids: none reaches a subject unescaped, no two share a token.
func TestTokenInjective(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	const letters = "abcXYZ019-_=.*> \t\r\n/\x00é\xff%$"
	ids := map[string]string{}
	for range 100_000 {
		b := make([]byte, rnd.IntN(100))
		for i := range b {
			b[i] = letters[rnd.IntN(len(letters))]
		}
		id := string(b)
		token := Token(id)
		if !isClean(token) {
			t.Fatalf("Token(%q) = %q", id, token)
		}
		for _, r := range reserved {
			if token == r && id != "" {
				t.Fatalf("Token(%q) is the reserved %s", id, r)
			}
		}
		if other, ok := ids[token]; ok && other != id {
			t.Fatalf("%q and %q have the token %s", id, other, token)
		}
		ids[token] = id
	}
}

func FuzzToken(f *testing.F) {
	for _, id := range hostileIDs {
		f.Add(id, "a")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := Token(a), Token(b)
		if !isClean(x) || (x == y) != (a == b) {
			t.Errorf("Token(%q) = %q, Token(%q) = %q", a, x, b, y)
		}
	})
}

// Every builder of subjects, keys and names makes the number of tokens that it should, whatever the ids are.
func TestSubjectsOfHostileIDs(t *testing.T) {
	t.Parallel()
	for _, id := range append(hostileIDs, "plain", "") {
		call := CallID{Run: id, Step: 1, Index: 2}
		for subject, tokens := range map[string]int{
			ns.InStart(id, id):    6,
			ns.InCancel(id, id):   5 + 1,
			ns.InDecide(id, call): 7,
			ns.InGrant(id, id):    6,
			ns.Chunk(id):          4,
			ns.Live(id):           4,
			ns.TimerSet(id):       5,
			ns.TimerFire(id):      5,
			ns.ThreadEntry(MessageStored{ResourceID: id, ThreadID: id, RunID: id, Index: 1}): 7,
			ns.Dead(id, id):                                5,
			ns.Note(id, id, "1-2"):                         6,
			ns.InDecideRun(id, id):                         6 + 1,
			ns.ServiceSubject(VerbAsk, id, id, "1-2"):      6 + 1,
			ns.ServiceSubject(VerbDecide, id, id, id):      6 + 1,
			ns.AdminSubject(id, id):                        6,
			ns.BesideRun(id, id).Subject():                 6 + 1,
			ns.Start(id).Subject():                         6,
			ns.Step(id, 3).Ingest():                        8,
			ns.End(id).Subject():                           6,
			ns.Call(call, KindAsk).Subject():               7,
			ns.Go(call, id, id).Subject():                  9,
			ns.Beside(call, KindVote, id).Subject():        7,
			ns.Probe(id, id).Subject():                     6,
			ns.GrantUse(id, call).Subject():                6,
			"weir.x." + SuspendedKey(id, id, id, id, id):   7,
			"weir.x." + TasksKey(id, id, ""):               4,
			"weir.x." + RegistryKey(RegistryTool, id):      4,
			"weir.x." + LiveKey(id, id):                    5,
			"weir.x." + DefKey(id):                         4,
			"weir.x." + PoolConsumer(id):                   3,
			strings.TrimSuffix(ns.MainOf(id), ".>") + ".x": 6,
		} {
			parts := strings.Split(subject, ".")
			if len(parts) != tokens {
				t.Errorf("id %q: %s has %d tokens, want %d", id, subject, len(parts), tokens)
			}
			for _, p := range parts {
				if p == "" || strings.ContainsAny(p, "*> \t\r\n\x00") || len(p) > MaxToken+12 {
					t.Errorf("id %q: %s", id, subject)
				}
			}
		}
	}
}

func TestCallID(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"r7Kq2=1-2", "r=1-1=20-3=999999-1", "0197c3a4-5b10-7000-8000-000000000000=1-64"} {
		c, err := ParseCallID(good)
		if err != nil || c.String() != good {
			t.Errorf("%s: %+v, %v", good, c, err)
		}
	}
	for _, bad := range []string{
		"", "r", "=1-1", "r=1", "r=1-", "r=0-1", "r=01-1", "r=1-+1", "r=1-1-1", "r=1-1000000", "r.=1-1",
		"r=1-1=", "r==1-1", "r=x=1-1", "*=1-1", strings.Repeat("x", 65) + "=1-1", "r=1-1 ",
	} {
		if c, err := ParseCallID(bad); !errors.Is(err, ErrBadID) {
			t.Errorf("%s: %+v, %v", bad, c, err)
		}
	}
	if ValidRunID("r=1-1") || ValidRunID("") || ValidRunID(strings.Repeat("x", 65)) || !ValidRunID("a_B-9") {
		t.Error("run ids from outside")
	}
}

func FuzzCallID(f *testing.F) {
	f.Add("r7Kq2=1-2")
	f.Add("r=1-1=2-2")
	f.Add("a=01-1")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCallID(s)
		if err != nil {
			return
		}
		if c.String() != s {
			t.Errorf("%q is read as %q", s, c.String())
		}
		p, err := ParsePlace(ns.Call(c, KindResult).Subject())
		if err != nil || p.CallID() != c {
			t.Errorf("%q: %+v, %v", s, p, err)
		}
	})
}

// TestParseNamespace refuses what would be more than one token of a subject, or none. (SUBJ-4)
func TestParseNamespace(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "A", "a.b", "a*", ">", "a.", "a_b", " a", strings.Repeat("a", 33)} {
		if got, err := ParseNamespace(bad); err == nil {
			t.Errorf("%q became %q", bad, got)
		}
	}
	if got, err := ParseNamespace("team-7"); err != nil || got != "team-7" {
		t.Error(got, err)
	}
}

func FuzzParsePlace(f *testing.F) {
	call := CallID{Run: "r7Kq2=1-3", Step: 2, Index: 1}
	for _, p := range []Place{
		ns.Start("r"), ns.Step("r", 3), ns.Carry("r", 1), ns.End("r=1-1"), ns.Call(call, KindAsk),
		ns.Go(call, "billing", "a.b"), ns.Go(call, TokenAgentPool, "x"), ns.Beside(call, KindVote, "=auto"),
		ns.Beside(call, KindRefused, "é"), ns.Probe("gate", "1"), ns.GrantUse("g", call), ns.BesideRun("r=1-1", "e1"),
	} {
		f.Add(p.Subject())
	}
	for _, s := range []string{
		"weir.default.run.*.main.start", "weir.default.run.r.main.step.01", "weir.default.run.r.call.1-1.>",
		"weir.default.grant.=probe.use.x", "weir.default.put.run.r.main.start", "weir.default.run.r.vote.1-1.==a",
		"weir.default.run.r.vote.=run.a", "weir.default.run.r.late.=run.a", "weir.default.run.r.call.=run.ask",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePlace(s)
		if err != nil {
			return
		}
		if p.Subject() != s {
			t.Errorf("%q is read as %+v, which is %q", s, p, p.Subject())
		}
		if strings.ContainsAny(s, "*>") {
			t.Errorf("%q is no subject of a fact", s)
		}
		if want := strings.Replace(s, "weir."+string(p.Namespace)+".", "weir."+string(p.Namespace)+".put.", 1); p.Ingest() != want {
			t.Errorf("%q is published to %q", s, p.Ingest())
		}
	})
}

// All facts of a chain name it by the identical text.
func TestChains(t *testing.T) {
	t.Parallel()
	call := CallID{Run: "r", Step: 1, Index: 2}
	other := CallID{Run: "r", Step: 1, Index: 3}
	for chain, places := range map[string][]Place{
		"weir.default.run.r.main.>": {ns.Start("r"), ns.Step("r", 1), ns.Carry("r", 2), ns.End("r")},
		"weir.default.run.r.call.1-2.>": {
			ns.Call(call, KindAsk), ns.Call(call, KindAnswer), ns.Go(call, "p", "t"),
			ns.Call(call, KindClaim), ns.Call(call, KindSuspend), ns.Call(call, KindResult),
		},
		"weir.default.run.r.call.1-3.>":      {ns.Call(other, KindAsk)},
		"weir.default.run.r.vote.1-2.bob":    {ns.Beside(call, KindVote, "bob")},
		"weir.default.run.r.late.1-2.e1":     {ns.Beside(call, KindLate, "e1")},
		"weir.default.run.r.refused.=run.e1": {ns.BesideRun("r", "e1")},
		"weir.default.grant.g1.>":            {ns.GrantUse("g1", call), ns.GrantUse("g1", other)},
		"weir.default.run.=probe.gate.abc":   {ns.Probe("gate", "abc")},
	} {
		for _, p := range places {
			if p.Chain() != chain || First(p).Filter() != chain || After(Event{Place: p, Seq: 7}).Filter() != chain ||
				Never(p).Filter() != chain {
				t.Errorf("%s is of the chain %s, want %s", p.Subject(), p.Chain(), chain)
			}
			if First(p).Seq() != 0 || After(Event{Place: p, Seq: 7}).Seq() != 7 || Never(p).Seq() != 1<<64-1 {
				t.Errorf("%s: guards", p.Subject())
			}
		}
	}
}

func TestInboxSubjects(t *testing.T) {
	t.Parallel()
	call := CallID{Run: "r=1-1", Step: 2, Index: 3}
	for subject, want := range map[string]Inbox{
		ns.InStart("bob", "support"):     {Verb: VerbStart, Principal: "bob", Agent: "support"},
		ns.InStart("a.b", TokenTool):     {Verb: VerbStart, Principal: "=bmexge", Agent: "=tool"},
		ns.InCancel(TokenPlanner, "r"):   {Verb: VerbCancel, Principal: "=planner", Run: "r"},
		ns.InDecide("alice", call):       {Verb: VerbDecide, Principal: "alice", Run: "r=1-1", Call: "2-3"},
		ns.InDecideRun("alice", "r"):     {Verb: VerbDecide, Principal: "alice", Run: "r", Call: TokenRun},
		"weir.default.in.decide.a.r":     {},
		"weir.other.in.cancel.bob.r":     {},
		"weir.default.run.r.main.start":  {},
		"weir.default.in.start.bob.x.y.": {},
	} {
		got, err := ns.ParseInbox(subject)
		if got != want || (err == nil) != (want.Verb != "") {
			t.Errorf("%s: %+v, %v", subject, got, err)
		}
	}
}

func TestServiceSubjects(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string]ServiceRequest{
		ns.ServiceSubject(VerbDecide, "alice", "r=1-1", "2-3"): {Verb: VerbDecide, Principal: "alice", Run: "r=1-1", Call: "2-3"},
		ns.ServiceSubject(VerbAsk, "a.b", "r", ""):             {Verb: VerbAsk, Principal: "=bmexge", Run: "r", Call: TokenRun},
		ns.AdminSubject("alice", "lag"):                        {Verb: VerbAdmin, Principal: "alice", Admin: "lag"},
		ns.ServiceSubject(VerbDecide, TokenAuto, "r", "1-1"):   {},
		"weir.default.svc.decide.=planner.r.1-1":               {},
		"weir.default.svc.decide.*.r.1-1":                      {},
		"weir.default.svc.decide.alice.>.1-1":                  {},
		"weir.default.svc.decide.alice.r.0-1":                  {},
		"weir.default.svc.decide.alice.r.=0":                   {},
		"weir.default.svc.decide.alice.r":                      {},
		"weir.default.svc.tool.default.refund.preview":         {},
		"weir.other.svc.ask.alice.r.1-1":                       {},
		"weir.default.in.decide.alice.r.1-1":                   {},
	} {
		got, err := ns.ParseService(subject)
		if got != want || (err == nil) != (want.Verb != "") {
			t.Errorf("%s: %+v, %v", subject, got, err)
		}
	}
}

// What is a request to the micro service is read as what it was built of, and as nothing else: the inbox takes it in the
// name of the same principal.
func FuzzParseService(f *testing.F) {
	for _, id := range hostileIDs {
		f.Add(ns.ServiceSubject(VerbDecide, id, id, id))
		f.Add(ns.AdminSubject(id, id))
		f.Add("weir.default.svc.decide." + id + ".r.1-1")
	}
	f.Fuzz(func(t *testing.T, subject string) {
		r, err := ns.ParseService(subject)
		if err != nil {
			return
		}
		built := "weir.default.svc." + r.Verb + "." + r.Principal
		if r.Verb == VerbAdmin {
			built += "." + r.Admin
		} else {
			built += "." + r.Run + "." + r.Call
		}
		if built != subject || strings.ContainsAny(subject, "*> ") {
			t.Errorf("%q is read as %+v", subject, r)
		}
		if r.Verb != VerbDecide {
			return
		}
		in, err := ns.ParseInbox(r.Inbox(ns))
		if want := (Inbox{Verb: VerbDecide, Principal: r.Principal, Run: r.Run, Call: r.Call}); err != nil || in != want {
			t.Errorf("%q is stored on %q: %+v, %v", subject, r.Inbox(ns), in, err)
		}
	})
}

func TestAllocsOfSubjects(t *testing.T) {
	call := CallID{Run: "0197c3a4-5b10-7000-8000-000000000000", Step: 1, Index: 2}
	p, g := ns.Call(call, KindResult), ns.Go(call, "billing", "issue_refund")
	for name, c := range map[string]struct {
		budget float64
		f      func()
	}{
		"Token of a literal": {0, func() { Token("issue_refund") }},
		"Subject":            {1, func() { _ = p.Subject() }},
		"Subject of go":      {1, func() { _ = g.Subject() }},
		"Ingest":             {1, func() { _ = p.Ingest() }},
		"Chain":              {1, func() { _ = p.Chain() }},
		"Chunk":              {1, func() { ns.Chunk(call.Run) }},
		"MainOf":             {1, func() { ns.MainOf(call.Run) }},
	} {
		if n := testing.AllocsPerRun(100, c.f); n > c.budget {
			t.Errorf("%s: %.0f allocations, budget %.0f", name, n, c.budget)
		}
	}
}

func TestCompareCalls(t *testing.T) {
	t.Parallel()
	want := []string{"", "no id", "a=1-1", "a=1-2", "a=1-10", "a=2-1", "a=10-1", "a=10-1=1-1", "b=1-1"}
	for i, a := range want {
		for j, b := range want {
			if got := CompareCalls(a, b); got != cmp.Compare(i, j) {
				t.Errorf("CompareCalls(%q, %q) = %d, want %d", a, b, got, cmp.Compare(i, j))
			}
		}
	}
}

// TestB1_17_KeyOfARunOfOneTool: its snapshot stands under the reserved token, which no agent's id gives, and is listed by it.
func TestB1_17_KeyOfARunOfOneTool(t *testing.T) {
	t.Parallel()
	if key := SuspendedKey(TokenTool, "u", "t", "r", "r"); key != "=tool.u.t.r.r" {
		t.Errorf("key = %s", key)
	}
	if filter := SuspendedFilter(TokenTool, "", ""); filter != "=tool.*.*.*.*" {
		t.Errorf("filter = %s", filter)
	}
	if key := SuspendedKey(TokenAuto, "u", "t", "r", "r"); key != Token(TokenAuto)+".u.t.r.r" {
		t.Errorf("key = %s", key)
	}
}
