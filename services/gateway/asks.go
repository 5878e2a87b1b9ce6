package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// asksQuery chooses open asks.
type asksQuery struct {
	Agent         string `json:"agent,omitempty"`
	Tool          string `json:"tool,omitempty"`
	Kind          string `json:"kind,omitempty"`
	Run           string `json:"run,omitempty"`
	Thread        string `json:"thread,omitempty"`
	Resource      string `json:"resource,omitempty"`
	Principal     string `json:"principal,omitempty"` // me: what the caller may decide
	ExpiresBefore string `json:"expiresBefore,omitempty"`
	Limit         int    `json:"limit,omitempty"`
	After         string `json:"after,omitempty"`
}

// openAsk is an ask in a list.
type openAsk struct {
	RootRunID string `json:"rootRunId"`
	events.OpenAsk
}

func openAskOf(a events.OpenAsk) openAsk { return openAsk{rootOf(a.RunID), a} }

// listAsks is the inbox: what waits for people, the oldest first.
func listAsks(r *request) (any, error) {
	q := r.URL.Query()
	f := client.Filter{
		Agent: q.Get("agent"), Tool: q.Get("tool"), Kind: events.AskKind(q.Get("kind")), Run: q.Get("run"),
		Thread: q.Get("thread"), Resource: q.Get("resource"),
	}
	switch q.Get("principal") {
	case "":
	case "me":
		f.Approver = &events.Approver{ID: r.who.def.ID, Groups: r.who.def.Groups, Barred: !r.who.def.May(events.MayDecide)}
	default:
		return nil, badQuery("principal", "want me")
	}
	if text := q.Get("expiresBefore"); text != "" {
		var err error
		if f.ExpireBefore, err = time.Parse(time.RFC3339, text); err != nil {
			return nil, badQuery("expiresBefore", "want a time such as 2026-11-29T22:25:32Z")
		}
	}
	list, _, err := r.who.Asks(r.Context(), f)
	if err != nil {
		return nil, err
	}
	views := make([]openAsk, len(list))
	for i, a := range list {
		views[i] = openAskOf(a)
	}
	return paged(r, views, func(a openAsk) place { return place{a.AskedAt.UnixNano(), a.ToolCallID} })
}

// getAsk is the open ask of a call, as the gate shows it.
func getAsk(r *request) (any, error) {
	id, err := events.ParseCallID(r.PathValue("toolCallId"))
	if err != nil {
		return nil, events.NotFound("call", "no call %.100q waits for a decision", r.PathValue("toolCallId"))
	}
	ask, err := r.who.Ask(r.Context(), id.String())
	if err != nil {
		return nil, err
	}
	return shownAsk(ask), nil
}

// answerView is news of an answer: who has decided a call, and how.
type answerView struct {
	ToolCallID string              `json:"toolCallId"`
	RunID      string              `json:"runId"`
	Round      int                 `json:"round"`
	Answer     *events.AnswerBrief `json:"answer"`
}

// watchAsks streams news about asks from now on.
func watchAsks(r *request) error {
	out := r.sse(nil)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	news, err := r.who.WatchAsks(ctx)
	if err != nil {
		return err
	}
	if err := out.raw(retryFrame); err != nil {
		return nil // the reader has gone
	}
	err = pump(r, out, func(inner context.Context) iter.Seq2[client.AskEvent, error] {
		return func(yield func(client.AskEvent, error) bool) {
			stop := context.AfterFunc(inner, cancel)
			defer stop()
			for n := range news {
				if !yield(n, nil) {
					return
				}
			}
		}
	}, func(n client.AskEvent, _ error) error {
		switch {
		case n.Ask != nil && forPeople(n.Ask.Kind):
			return out.event(0, "asked", openAskOf(n.Ask.Open()))
		case n.Answer != nil:
			return out.event(0, "answered", answerView{n.Answer.ToolCallID, n.Answer.RunID, n.Answer.Round, n.Answer.Brief()})
		}
		return nil
	})
	if err != nil && !errors.Is(err, errGone) {
		_, body, _ := statusOf(err)
		_ = out.event(0, "error", body) // the reader may have gone: nobody to tell
	}
	return nil
}

// forPeople reports whether asks of a kind are for people to decide, who look for what there is.
func forPeople(kind events.AskKind) bool {
	return kind == events.AskApproval || kind == events.AskSuspended || kind == events.AskInDoubt
}

// decisionBody is a decision about a call.
type decisionBody struct {
	Decision    events.Decision     `json:"decision"`
	Round       *int                `json:"round,omitempty"`
	Fingerprint string              `json:"fingerprint,omitempty"`
	Reason      string              `json:"reason,omitempty"`
	Args        json.RawMessage     `json:"args,omitempty"`        // edit
	Result      json.RawMessage     `json:"result,omitempty"`      // respond
	ModelOutput *events.ModelOutput `json:"modelOutput,omitempty"` // respond
	ResumeData  json.RawMessage     `json:"resumeData,omitempty"`  // resume
	Grant       *events.GrantTerms  `json:"grant,omitempty"`       // approve
}

// decisions are those that people may take.
var decisions = []events.Decision{events.Approve, events.Decline, events.Edit, events.Respond, events.ResumeD, events.Retry}

// decide sends a decision, and answers what became of it.
func decide(r *request) (any, error) {
	var body decisionBody
	if err := r.readExact(&body); err != nil {
		return nil, err
	}
	if !slices.Contains(decisions, body.Decision) {
		return nil, badBody("decision", fmt.Sprintf("want one of %v", decisions))
	}
	id, err := events.ParseCallID(r.PathValue("toolCallId"))
	if err != nil {
		return nil, events.NotFound("call", "no call %.100q waits for a decision", r.PathValue("toolCallId"))
	}
	out, err := r.who.Decide(r.Context(), client.Decision{
		Decision: body.Decision, ToolCallID: id.String(), Round: body.Round, Fingerprint: body.Fingerprint, Reason: body.Reason,
		Args: body.Args, Result: body.Result, ModelOutput: body.ModelOutput, ResumeData: body.ResumeData, Grant: body.Grant,
		Groups: r.who.def.Groups,
	})
	if err != nil {
		return nil, err
	}
	if out.State == client.StateSent {
		return &reply{status: http.StatusAccepted, body: out}, nil
	}
	return out, nil
}

// maxBatch is how many calls one request may decide.
const maxBatch = 100

// batchBody decides calls that were looked at: each by the fingerprint of what was shown.
type batchBody struct {
	Decision events.Decision `json:"decision"` // approve or decline
	Reason   string          `json:"reason,omitempty"`
	Asks     []seenAsk       `json:"asks"`
}

type seenAsk struct {
	ToolCallID  string `json:"toolCallId"`
	Fingerprint string `json:"fingerprint"`
	Round       *int   `json:"round,omitempty"`
}

// batchItem is what became of one of the decisions.
type batchItem struct {
	ToolCallID string              `json:"toolCallId"`
	Accepted   *bool               `json:"accepted"` // null: nobody knows yet
	State      string              `json:"state,omitempty"`
	Answer     *events.AnswerBrief `json:"answer,omitempty"`
	Error      any                 `json:"error,omitempty"`
}

// decideMany decides each of some calls alone.
func decideMany(r *request) (any, error) {
	var body batchBody
	if err := r.readExact(&body); err != nil {
		return nil, err
	}
	switch {
	case body.Decision != events.Approve && body.Decision != events.Decline:
		return nil, badBody("decision", "want approve or decline")
	case len(body.Asks) == 0 || len(body.Asks) > maxBatch:
		return nil, badBody("asks", fmt.Sprintf("want 1 to %d calls", maxBatch))
	}
	seen := map[string]bool{}
	for i, a := range body.Asks {
		_, err := events.ParseCallID(a.ToolCallID)
		switch {
		case err != nil:
			return nil, badBody(fmt.Sprintf("asks[%d].toolCallId", i), "is no id of a call")
		case a.Fingerprint == "":
			return nil, badBody(fmt.Sprintf("asks[%d].fingerprint", i), "Required")
		case seen[a.ToolCallID]:
			return nil, badBody(fmt.Sprintf("asks[%d].toolCallId", i), "is there twice")
		}
		seen[a.ToolCallID] = true
	}
	items := make([]batchItem, len(body.Asks))
	slots := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i, a := range body.Asks {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			items[i] = r.decideOne(body, a)
		})
	}
	wg.Wait()
	return list[batchItem]{Items: items}, nil
}

func (r *request) decideOne(body batchBody, a seenAsk) batchItem {
	yes, no := true, false
	out, err := r.who.Decide(r.Context(), client.Decision{
		Decision: body.Decision, ToolCallID: a.ToolCallID, Round: a.Round, Fingerprint: a.Fingerprint, Reason: body.Reason,
		Groups: r.who.def.Groups,
	})
	if err != nil {
		_, shown, inside := statusOf(err)
		if inside {
			r.g.log.WarnContext(r.Context(), "a decision of several failed", "toolCallId", a.ToolCallID, "error", err)
		}
		return batchItem{ToolCallID: a.ToolCallID, Accepted: &no, Error: shown}
	}
	item := batchItem{ToolCallID: a.ToolCallID, Accepted: &yes, State: out.State, Answer: out.Answer}
	if out.State == client.StateSent {
		item.Accepted = nil
	}
	return item
}
