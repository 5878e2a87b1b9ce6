// Package modeltest is the conformance suite of model adapters. An adapter's test says how its provider would tell a
// Reply and how to read a request of its protocol, and the suite checks everything that must be the same behind every
// provider:
//
//	func TestConformance(t *testing.T) {
//		modeltest.Exercise(t, modeltest.Provider{Serve: serve, Secret: key})
//	}
//
// Providers are served in process (Transport), so the suite needs no port and can run in fake time.
package modeltest

import (
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Provider is an adapter under test and the double of its provider.
type Provider struct {
	// Serve gives a model whose provider answers one request after the other with the replies, the last one for all
	// that follow. It keeps the requests in asked. Nothing may use the network.
	Serve func(t *testing.T, asked *Log, replies ...Reply) agent.Model
	// Secret is the key that the model sends. It must be in no error.
	Secret string
	// NoRequests: there is no provider behind the model, and so neither requests, silence nor keys.
	NoRequests bool
	// ResultMedia: the provider takes pictures in results.
	ResultMedia bool
}

// Reply is what a provider answers to one request.
type Reply struct {
	Reasoning []string // pieces of each, as they are streamed
	Text      []string
	Calls     []Call
	Finish    agent.FinishReason // empty: tool-calls or stop
	Usage     events.Usage
	End       End

	// Status, when it is not zero, is the HTTP status of a refusal, and all above is not said.
	Status     int
	Message    string
	RetryAfter time.Duration // whole seconds
}

// Call is a tool call of a reply.
type Call struct {
	ID   string // the provider's; may be empty
	Name string
	Args []string // pieces
}

// End says how a reply ends.
type End uint8

// Ends of replies.
const (
	EndWhole  End = iota
	EndLimit      // the limit of tokens cut it inside the arguments of the last call
	EndLost       // the connection was lost after what was said; the last call is not complete
	EndSilent     // after what was said nothing comes any more, and the connection stays
)

// Request is what a provider was asked, in no provider's form.
type Request struct {
	System   string
	Messages []Message
	Tools    []Tool
	Choice   string // auto, required, tool:<name>, or empty when no tools are offered
	Body     string // as it was sent
}

// Message is a message of a request.
type Message struct {
	Role   events.Role
	Text   string
	Calls  []AskedCall
	Result string // role tool: the id of the call whose result it is
}

// AskedCall is a call in a request's history.
type AskedCall struct{ ID, Name, Args string }

// Tool is a tool that a request offers.
type Tool struct {
	Name   string
	Schema json.RawMessage
}

// Log are the requests that a provider got.
type Log struct {
	mu       sync.Mutex
	requests []Request
}

// Add keeps a request.
func (l *Log) Add(r Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, r)
}

// All are the requests so far.
func (l *Log) All() []Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Request(nil), l.requests...)
}

// Server is how a provider of a test speaks its protocol.
type Server struct {
	// Check fails the test when a request comes to the wrong place, or without what it needs.
	Check func(t *testing.T, r *http.Request)
	// Read reads the body of a request.
	Read func(t *testing.T, body []byte) Request
	// ContentType is that of what Answer streams.
	ContentType string
	Answer      func(w io.Writer, r *http.Request, reply Reply)
	Refuse      func(w http.ResponseWriter, reply Reply)
}

// Handler answers each request with the next of the replies, the last again and again, and notes what was asked.
func (s Server) Handler(t *testing.T, asked *Log, replies ...Reply) http.HandlerFunc {
	t.Helper()
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		s.Check(t, r)
		asked.Add(s.Read(t, raw))
		reply := replies[min(int(n.Add(1)), len(replies))-1]
		if reply.Status != 0 {
			s.Refuse(w, reply)
			return
		}
		w.Header().Set("Content-Type", s.ContentType)
		s.Answer(w, r, reply)
	}
}

// Exercise runs the whole suite.
func Exercise(t *testing.T, p Provider) {
	t.Helper()
	for _, c := range []struct {
		name     string
		requests bool // it needs a provider that is asked
		run      func(t *testing.T, p Provider)
	}{
		{"text", false, testText},
		{"reasoning", false, testReasoning},
		{"B22_5 parallel calls", false, testCalls},
		{"B22_2 provider ids are not relied on", false, testProviderIDs},
		{"a call without arguments", false, testNoArgs},
		{"B2_3 a call cut by the limit has no end", false, testLimit},
		{"B22_6 a lost connection", false, testLost},
		{"B22_6 refusals", false, testRefusals},
		{"a caller that stops", false, testStop},
		{"a caller that cancels", false, testCancel},
		{"B22_6 silence", true, testSilence},
		{"B22_11 secrets", true, testSecrets},
		{"B22_1 calls and results are paired", true, testPairing},
		{"B22_1 broken transcripts are not sent", true, testBroken},
		{"B4_4 pictures in results", true, testResultMedia},
		{"B22_7 a declined call", true, testDeclined},
		{"ARGS_3 history is valid", true, testHistory},
		{"B22_3 ids are legal and stable", true, testIDs},
		{"B22_3 names and schemas are legal", true, testTools},
		{"B1_6 collisions are refused", true, testCollision},
		{"B13_4 tool choice", true, testChoice},
		{"equal requests are equal bytes", true, testSame},
		{"B13_11 an answer that fits a schema", true, testOutputSchema},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !c.requests || !p.NoRequests {
				c.run(t, p)
			}
		})
	}
}
