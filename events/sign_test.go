package events

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"
	"time"
)

func testKey(tb testing.TB, name string) (Key, Keys) {
	tb.Helper()
	seed := bytes.Repeat([]byte(name), ed25519.SeedSize)[:ed25519.SeedSize]
	private := ed25519.NewKeyFromSeed(seed)
	k := Key{Public: "U" + name, Private: private}
	return k, Keys{k.Public: private.Public().(ed25519.PublicKey)}
}

// The fingerprint is part of the protocol: programs in other languages compute the same.
func TestFingerprintGolden(t *testing.T) {
	t.Parallel()
	f := Frozen{
		Namespace: "default", RunID: "r7Kq2", ToolCallID: "r7Kq2=1-2", Round: 0, ToolID: "issue_refund",
		ToolVersion: "3", InputSchemaDigest: "sha256:aa31f0", Args: []byte(`{"amount":612.50,"orderId":"ord-1042"}`),
	}
	const want = "sha256:08e3e45d66c4e797b429a0098a0943eb41e0514147d2a34121de54241abbe085"
	if got := f.Fingerprint(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	seen := map[string]string{want: "nothing changed"}
	for name, change := range map[string]func(*Frozen){
		"namespace": func(f *Frozen) { f.Namespace = "other" },
		"run":       func(f *Frozen) { f.RunID = "r7Kq3" },
		"call":      func(f *Frozen) { f.ToolCallID = "r7Kq2=1-3" },
		"round":     func(f *Frozen) { f.Round = 1 },
		"tool":      func(f *Frozen) { f.ToolID = "issue_refunds" },
		"version":   func(f *Frozen) { f.ToolVersion = "4" },
		"schema":    func(f *Frozen) { f.InputSchemaDigest = "sha256:aa31f1" },
		"amount":    func(f *Frozen) { f.Args = []byte(`{"amount":612.51,"orderId":"ord-1042"}`) },
		"spelling":  func(f *Frozen) { f.Args = []byte(`{"amount":612.5,"orderId":"ord-1042"}`) },
		"shifted":   func(f *Frozen) { f.ToolID, f.ToolVersion = "issue_refund3", "" },
	} {
		g := f
		change(&g)
		got := g.Fingerprint()
		if other, ok := seen[got]; ok {
			t.Errorf("%s: the same fingerprint as with %s", name, other)
		}
		seen[got] = name
	}
}

func TestSignVerify(t *testing.T) {
	t.Parallel()
	key, keys := testKey(t, "gate")
	other, otherKeys := testKey(t, "other")
	const domain, subject, payload = DomainGo, "weir.default.run.r.call.1-1.go.p.t", `{"specversion":"1.0"}`
	sig := Sign(key, domain, subject, []byte(payload))
	if err := keys.Verify(domain, subject, []byte(payload), sig); err != nil {
		t.Fatal(err)
	}
	forged := Sign(other, domain, subject, []byte(payload))
	forged.Key = key.Public
	for name, err := range map[string]error{
		"domain":        keys.Verify(DomainAsk, subject, []byte(payload), sig),
		"subject":       keys.Verify(domain, subject+"x", []byte(payload), sig),
		"payload":       keys.Verify(domain, subject, []byte(payload+" "), sig),
		"shifted":       keys.Verify(domain, strings.TrimSuffix(subject, "t"), []byte("t"+payload), sig),
		"no signature":  keys.Verify(domain, subject, []byte(payload), Signature{Key: key.Public}),
		"not base64":    keys.Verify(domain, subject, []byte(payload), Signature{Key: key.Public, Sig: "?" + sig.Sig[1:]}),
		"padded":        keys.Verify(domain, subject, []byte(payload), Signature{Key: key.Public, Sig: sig.Sig + "=="}),
		"cut":           keys.Verify(domain, subject, []byte(payload), Signature{Key: key.Public, Sig: sig.Sig[:80]}),
		"other key":     otherKeys.Verify(domain, subject, []byte(payload), sig),
		"claims a key":  keys.Verify(domain, subject, []byte(payload), forged),
		"no keys":       Keys(nil).Verify(domain, subject, []byte(payload), sig),
		"key of nobody": keys.Verify(domain, subject, []byte(payload), Signature{Sig: sig.Sig}),
	} {
		if !errors.Is(err, ErrBadSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A signed fact holds only where it was signed for, and as it was signed: any change of one byte of it fails.
func TestVerifyFact(t *testing.T) {
	t.Parallel()
	key, keys := testKey(t, "gate")
	o := &Origin{Namespace: ns, Service: "approval", Key: &key, Now: func() time.Time { return sampleTime }}
	released := samples["call.released.v1.json"].(CallReleased)
	call := CallID{Run: "r7Kq2", Step: 1, Index: 2}
	e, err := o.Fact(ns.Go(call, "billing", "issue_refund"), released, Event{})
	if err != nil {
		t.Fatal(err)
	}
	header, payload, err := EncodeMsg(e)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := DecodeMsg(header, payload)
	if err != nil {
		t.Fatal(err)
	}
	stored.Place = e.Place
	if err := keys.VerifyFact(stored); err != nil {
		t.Fatal(err)
	}
	for i := range payload {
		bad := stored
		bad.Payload = bytes.Clone(payload)
		bad.Payload[i] ^= 1
		if keys.VerifyFact(bad) == nil {
			t.Fatalf("verifies with byte %d changed", i)
		}
	}
	for name, change := range map[string]func(*Event){
		"call":      func(e *Event) { e.Place.Call = "1-3" },
		"run":       func(e *Event) { e.Place.Run = "r7Kq3" },
		"pool":      func(e *Event) { e.Place.Pool = "default" },
		"tool":      func(e *Event) { e.Place.Tool = "other" },
		"kind":      func(e *Event) { e.Place.Kind = KindAsk },
		"namespace": func(e *Event) { e.Place.Namespace = "other" },
		"type":      func(e *Event) { e.Type = TypeOf[CallHeld]() },
		"unsigned":  func(e *Event) { e.Type = TypeOf[CallClaimed]() },
		"signature": func(e *Event) { e.Signature = Signature{} },
	} {
		bad := stored
		change(&bad)
		if err := keys.VerifyFact(bad); !errors.Is(err, ErrBadSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What is made is checked: data that break their schema never become an event.
func TestFactChecksData(t *testing.T) {
	t.Parallel()
	o := &Origin{Namespace: ns, Service: "tool-executor"}
	call := CallID{Run: "r7Kq2", Step: 1, Index: 2}
	good := sampleFinished()
	e, err := o.Fact(ns.Call(call, KindResult), good, Event{ID: "cause", TraceParent: "00-x"})
	if err != nil {
		t.Fatal(err)
	}
	if e.Type != TypeOf[CallFinished]() || e.CausationID != "cause" || e.TraceParent != "00-x" || e.Subject != "r7Kq2" ||
		e.CorrelationID != "r7Kq2" || len(e.ID) != 36 || e.ID[14] != '7' || e.Signature != (Signature{}) {
		t.Errorf("got %+v", e)
	}
	bad := good
	bad.Outcome = "fine"
	if _, err := o.Fact(ns.Call(call, KindResult), bad, Event{}); err == nil || !strings.Contains(err.Error(), "outcome: want one of") {
		t.Errorf("unknown outcome: %v", err)
	}
	bad = good
	bad.Result = []byte(`{"a":1,"a":2}`)
	if _, err := o.Fact(ns.Call(call, KindResult), bad, Event{}); err == nil || !strings.Contains(err.Error(), "duplicate key") {
		t.Errorf("ambiguous result: %v", err)
	}
	if _, err := o.Fact(ns.Start("r"), struct{}{}, Event{}); err == nil {
		t.Error("no event's data became an event")
	}
	child := CallID{Run: "r7Kq2=1-3=2-1", Step: 1, Index: 1}
	if e, err := o.Fact(ns.Call(child, KindResult), good, Event{}); err != nil || e.CorrelationID != "r7Kq2" {
		t.Errorf("root of a child: %s, %v", e.CorrelationID, err)
	}
}

// On receipt the data are checked too, and readers may not differ about a field.
func TestValidateData(t *testing.T) {
	t.Parallel()
	const start = `{"decision":"decline","toolCallId":"r=1-1"`
	for data, want := range map[string]string{
		start + `}`: "",
		start + `,"later":{"Decision":1},"x":null}`:   "",
		start + `,"reason":null,"grant":null}`:        "",
		start + `,"Decision":"approve"}`:              "another spelling",
		start + `,"TOOLCALLID":"r=1-2"}`:              "another spelling",
		start + `,"grant":{"scope":"run","Uses":9}}`:  "another spelling",
		start + `,"\u0044ecision":"approve"}`:         "another spelling",
		`{"decision":"expired","toolCallId":"r=1-1"}`: "decision: want one of",
		`{"decision":"approve"}`:                      "", // the call that waits
		`{"decision":"approve","toolCallId":""}`:      "toolCallId: want at least 3 characters",
		`{"toolCallId":"r=1-1"}`:                      "decision: is required",
		`{"Decision":"approve","toolCallId":"r"}`:     "decision: is required",
		start + `,"round":"0"}`:                       "round: want integer or null, got string",
		start + `,"round":-1}`:                        "round: want at least 0",
		`[]`:                                          "want object, got array",
		``:                                            "the text ends",
	} {
		err := ValidateData(Event{Type: TypeOf[DecisionRequested](), Data: []byte(data)})
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !errors.Is(err, ErrBadEvent)) {
			t.Errorf("%s: %v, want %q", data, err, want)
		}
	}
	if err := ValidateData(Event{Type: "dev.weirkeeper.other.v1", Data: []byte(`{}`)}); !errors.Is(err, ErrBadEvent) {
		t.Error(err)
	}
}

// TestSignatureHasOneText refuses a text that decodes to the same signature with other bits in its last character: what
// is signed has one form, so that records can be compared byte by byte.
func TestSignatureHasOneText(t *testing.T) {
	t.Parallel()
	key, keys := testKey(t, "gate")
	good := Sign(key, DomainDecision, "s", []byte("{}"))
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, good.Sig[len(good.Sig)-1])
	for i := range 16 {
		s := good
		s.Sig = s.Sig[:len(s.Sig)-1] + string(alphabet[last&^15|i])
		if err := keys.Verify(DomainDecision, "s", []byte("{}"), s); (err == nil) != (s.Sig == good.Sig) {
			t.Errorf("%s verifies: %v", s.Sig, err)
		}
	}
}
