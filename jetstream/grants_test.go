package jetstream_test

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

func standing(id, thread string) events.Grant {
	now := time.Now().UTC().Truncate(time.Millisecond)
	return events.Grant{
		V: events.GrantVersion, ID: id, AgentID: "support", ToolID: "pay", ThreadID: thread, ResourceID: "bob",
		Terms:     events.GrantTerms{Scope: events.ScopeThread, For: events.Duration(time.Hour), Uses: 3},
		GrantedBy: "alice", AuthType: events.AuthKey, GrantedAt: now, ExpiresAt: now.Add(time.Hour),
	}
}

func gateKey(t *testing.T) (events.Key, events.Keys) {
	t.Helper()
	k, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	pub, err := jetstream.ParsePublic(k.Public)
	if err != nil {
		t.Fatal(err)
	}
	return k, events.Keys{k.Public: pub}
}

// granted reads the only grant that a filter chooses.
func granted(t *testing.T, c *jetstream.Conn, f events.GrantFilter) jetstream.StoredGrant {
	t.Helper()
	all, err := c.Grants(t.Context(), f)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d grants, %v; want one", len(all), err)
	}
	return all[0]
}

func TestGrants(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	key, keys := gateKey(t)
	g := standing("g1", "t1")
	if _, err := c.CreateGrant(t.Context(), g, key); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateGrant(t.Context(), standing("g2", "t.2"), key); err != nil {
		t.Fatal(err)
	}
	run := standing("g3", "")
	run.Terms.Scope, run.RunID, run.ResourceID = events.ScopeRun, "r=1-1", ""
	if _, err := c.CreateGrant(t.Context(), run, key); err != nil {
		t.Fatal(err)
	}
	for want, f := range map[string]events.GrantFilter{
		"g1": {Scope: events.ScopeThread, Of: "t1", Tool: "pay"}, "g2": {Scope: events.ScopeThread, Of: "t.2"},
		"g3": {Scope: events.ScopeRun, Of: "r=1-1", Tool: "pay", ID: "g3"},
	} {
		if got := granted(t, c, f); got.ID != want || got.Genuine(keys) != nil {
			t.Errorf("%+v finds %s, %v", f, got.ID, got.Genuine(keys))
		}
	}
	if all, err := c.Grants(t.Context(), events.GrantFilter{Tool: "pay"}); err != nil || len(all) != 3 {
		t.Errorf("%d grants of the tool, %v", len(all), err)
	}

	got, err := c.CreateGrant(t.Context(), g, key)
	if err != nil || !got.Same(g) {
		t.Errorf("created again: %v", err)
	}
	other := g
	other.Terms.Uses = 4
	if there, err := c.CreateGrant(t.Context(), other, key); !errors.Is(err, jetstream.ErrConflict) || !there.Same(g) {
		t.Errorf("created with other terms: %v, there is %+v", err, there.Grant)
	}

	r := events.Revocation{By: "carol", At: time.Now().UTC().Truncate(time.Millisecond), Reason: "enough"}
	read := granted(t, c, events.GrantFilter{ID: "g1"})
	if _, err := c.RevokeGrant(t.Context(), read, r, key); err != nil {
		t.Fatal(err)
	}
	late := events.Revocation{By: "dave", At: r.At}
	if there, err := c.RevokeGrant(t.Context(), read, late, key); !errors.Is(err, jetstream.ErrConflict) || there.Revoked == nil {
		t.Errorf("revoked as it was read before: %v, %+v", err, there.Revoked)
	}
	if there, err := c.CreateGrant(t.Context(), g, key); err != nil || there.Revoked == nil {
		t.Errorf("created after the revocation: %v, %+v", err, there.Revoked)
	}
	want := g
	want.Revoked = &r
	now := granted(t, c, events.GrantFilter{ID: "g1"})
	if diff := cmp.Diff(want, now.Grant); diff != "" || now.Genuine(keys) != nil {
		t.Errorf("revoked grant (-want +got), %v:\n%s", now.Genuine(keys), diff)
	}
}

// TestGrantIsForgotten: the server takes a grant away some time after it is over, and a revoked one no sooner.
func TestGrantIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, c := open(t)
		key, _ := gateKey(t)
		for _, id := range []string{"g1", "g2"} {
			if _, err := c.CreateGrant(t.Context(), standing(id, "t1"), key); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30 * time.Minute) // fake
		r := events.Revocation{By: "carol", At: time.Now()}
		if _, err := c.RevokeGrant(t.Context(), granted(t, c, events.GrantFilter{ID: "g1"}), r, key); err != nil {
			t.Fatal(err)
		}
		count := func() int {
			all, err := c.Grants(t.Context(), events.GrantFilter{})
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		time.Sleep(30 * time.Minute) // fake
		if n := count(); n != 2 {
			t.Errorf("%d grants are left at their end", n)
		}
		time.Sleep(2 * time.Minute) // fake
		if n := count(); n != 0 {
			t.Errorf("%d grants are left", n)
		}
	})
}

// TestForeignGrants puts into the bucket what no gate has written there: it is not genuine, or not there at all, wherever it
// was copied from.
func TestForeignGrants(t *testing.T) {
	t.Parallel()
	srv, c := open(t)
	key, keys := gateKey(t)
	g := standing("g1", "t1")
	if _, err := c.CreateGrant(t.Context(), g, key); err != nil {
		t.Fatal(err)
	}
	raw := rawConn(t, srv)
	const bucket = "$KV.weir_default_grants."
	put := func(key string, g events.Grant, sig events.Signature) {
		value, err := events.Marshal(g)
		if err != nil {
			t.Fatal(err)
		}
		m := nats.NewMsg(bucket + key)
		m.Data = value
		m.Header[events.HeaderKey], m.Header[events.HeaderSig] = []string{sig.Key}, []string{sig.Sig}
		if _, err := raw.RequestMsg(m, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	value, err := events.Marshal(g)
	if err != nil {
		t.Fatal(err)
	}
	sig := events.Sign(key, events.DomainGrant, bucket+g.Key(), value)
	if err := keys.Verify(events.DomainGrant, bucket+g.Key(), value, sig); err != nil {
		t.Fatal(err)
	}

	more := g
	more.Terms.Uses = 1000
	put(g.Key(), more, sig) // as signed, with other terms
	if got := granted(t, c, events.GrantFilter{ID: "g1"}); got.Genuine(keys) == nil {
		t.Error("changed terms are genuine")
	}
	put(g.Key(), g, events.Signature{})
	if got := granted(t, c, events.GrantFilter{ID: "g1"}); got.Genuine(keys) == nil {
		t.Error("a grant without a signature is genuine")
	}
	put(g.Key(), g, sig)
	if got := granted(t, c, events.GrantFilter{ID: "g1"}); got.Genuine(keys) != nil {
		t.Error("the grant as it was signed is not genuine")
	}

	later := standing("g2", "t1")
	later.V++
	put(later.Key(), later, events.Signature{})
	put(standing("g3", "t1").Key(), standing("g4", "t1"), events.Signature{}) // under another's key
	if _, err := raw.Request(bucket+"thread.t1.pay.g5", []byte("{"), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	granted(t, c, events.GrantFilter{}) // none of these
}

// TestGrantOfAnotherNamespace: what was signed for one namespace is worth nothing in another, under the same key.
func TestGrantOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	srv, c := open(t)
	key, keys := gateKey(t)
	g := standing("g1", "t1")
	there, err := c.CreateGrant(t.Context(), g, key)
	if err != nil {
		t.Fatal(err)
	}
	other := connect(t, srv, jetstream.Options{Namespace: "other"})
	ensure(t, other, jetstream.Settings{})
	if all, err := other.Grants(t.Context(), events.GrantFilter{}); err != nil || len(all) != 0 {
		t.Fatalf("the other namespace sees %d grants, %v", len(all), err)
	}
	value, err := json.Marshal(there.Grant)
	if err != nil {
		t.Fatal(err)
	}
	sig := events.Sign(key, events.DomainGrant, "$KV.weir_default_grants."+g.Key(), value)
	m := nats.NewMsg("$KV.weir_other_grants." + g.Key())
	m.Data = value
	m.Header[events.HeaderKey], m.Header[events.HeaderSig] = []string{sig.Key}, []string{sig.Sig}
	if _, err := rawConn(t, srv).RequestMsg(m, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if got := granted(t, other, events.GrantFilter{}); got.Genuine(keys) == nil {
		t.Error("a grant of another namespace is genuine")
	}
}

// TestGrantLostReply: a writer whose reply was lost finds that the grant, or the revocation, is its own.
func TestGrantLostReply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, _ := open(t)
		key, _ := gateKey(t)
		var lost atomic.Int32
		unlucky := connect(t, srv, jetstream.Options{Hooks: jetstream.Hooks{LoseReply: func(subject string) bool {
			return strings.HasPrefix(subject, "$KV.") && lost.Add(1)%2 == 1
		}}})
		g := standing("g1", "t1")
		stored, err := unlucky.CreateGrant(t.Context(), g, key)
		if err != nil || !stored.Same(g) {
			t.Fatalf("create: %v", err)
		}
		r := events.Revocation{By: "carol", At: time.Now()}
		if stored, err = unlucky.RevokeGrant(t.Context(), stored, r, key); err != nil || stored.Revoked == nil {
			t.Fatalf("revoke: %v", err)
		}
	})
}

// TestGrantRace lets writers of different grants under one key meet: one of them wins, and the others are told which.
func TestGrantRace(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	key, _ := gateKey(t)
	var won atomic.Int32
	var writers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			g := standing("g1", "t1")
			g.Terms.Uses = i + 1
			there, err := c.CreateGrant(t.Context(), g, key)
			switch {
			case err == nil && there.Terms.Uses == i+1:
				won.Add(1)
			case !errors.Is(err, jetstream.ErrConflict) || there.ID != "g1":
				t.Errorf("%v, %+v", err, there.Grant)
			}
		})
	}
	writers.Wait()
	if won.Load() != 1 {
		t.Errorf("%d writers have won", won.Load())
	}
}

// TestGrantDeletedByHand is not brought back by what comes late.
func TestGrantDeletedByHand(t *testing.T) {
	t.Parallel()
	srv, c := open(t)
	key, _ := gateKey(t)
	g := standing("g1", "t1")
	if _, err := c.CreateGrant(t.Context(), g, key); err != nil {
		t.Fatal(err)
	}
	m := nats.NewMsg("$KV.weir_default_grants." + g.Key())
	m.Header.Set("KV-Operation", "DEL")
	if _, err := rawConn(t, srv).RequestMsg(m, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateGrant(t.Context(), g, key); !errors.Is(err, jetstream.ErrConflict) {
		t.Errorf("created again: %v", err)
	}
	if all, err := c.Grants(t.Context(), events.GrantFilter{}); err != nil || len(all) != 0 {
		t.Errorf("%d grants, %v", len(all), err)
	}
}
