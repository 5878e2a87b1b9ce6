package sim

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/client"
)

// paysSecretly is an agent with memory, of whose one tool the transcript shows less than what people are asked with.
func paysSecretly() Options {
	return Options{
		Tools: []agent.Tool{agent.NewTool("issue_refund", "Refund an order",
			func(_ context.Context, _ *agent.Call, in Order) (map[string]any, error) {
				return map[string]any{"refundId": "rf-" + in.OrderID}, nil
			}, &agent.ToolOptions{RequireApproval: agent.Always(), Transform: &agent.Transform{Transcript: &agent.Forms{
				Input: agent.FormJQ(`{orderId: "hidden"}`), Output: agent.FormJQ(`"paid"`),
			}}})},
		Agent: events.AgentDef{
			ID: "support", Model: "scripted/sim", Tools: map[string]string{"issue_refund": "issue_refund"}, Memory: &events.Memory{},
		},
	}
}

// While a call waits, readers of the thread see what it waits for, as its transcript shows it; what is stored has no open call.
// When it is settled nothing has to be removed.
func TestB13_13_ReadersAddTheOpenAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := New(t, paysSecretly())
		w.StartAll()
		call := w.inThread("r1", "t1")
		ask := w.AwaitAsk(call, patience)
		synctest.Wait()
		c := client.New(w.Conn(), client.Config{Principal: "bob"})
		thread := client.Thread{ResourceID: "bob", ThreadID: "t1"}
		page, err := c.Messages(t.Context(), thread, 0, 0)
		w.must(err)
		if len(page.Messages) != 2 || page.Messages[0].Parts[0].Text != "refund order 42" {
			t.Fatalf("messages %+v", page.Messages)
		}
		open := page.Messages[1]
		waits, ok := open.Metadata.PendingToolApprovals[call.String()]
		if !ok || waits.RunID != "r1" || waits.Type != "approval" || string(waits.Args) != `{"orderId":"hidden"}` || open.Parts[0].Args != string(waits.Args) {
			t.Errorf("open message %+v", open)
		}
		stored, err := w.Conn().ThreadEntries(t.Context(), "bob", "t1")
		w.must(err)
		if len(stored) != 1 {
			t.Errorf("%d entries are stored, want what was asked alone", len(stored))
		}
		w.Decide("alice", events.DecisionRequested{Decision: events.Decline, ToolCallID: call.String(), Fingerprint: ask.Fingerprint, Reason: "too much"})
		w.AwaitEnd("r1", patience)
		synctest.Wait()
		page, err = c.Messages(t.Context(), thread, 0, 0)
		w.must(err)
		var roles []events.Role
		for _, m := range page.Messages {
			roles = append(roles, m.Role)
			if m.Metadata != nil {
				t.Errorf("settled, and %+v still waits", m.Metadata)
			}
		}
		if !slices.Equal(roles, []events.Role{"user", "assistant", "tool", "assistant"}) || page.Messages[2].Parts[0].State != events.StateDenied {
			t.Errorf("messages %+v", page.Messages)
		}
		if part, err := c.Messages(t.Context(), thread, 1, 3); err != nil || part.Total != 4 || len(part.Messages) != 1 {
			t.Errorf("page %+v, %v", part, err)
		}
		if _, err := c.Messages(t.Context(), client.Thread{ThreadID: "t1"}, 0, 0); events.CodeOf(err) != events.CodeNotFound {
			t.Errorf("the thread of nobody: %v", err)
		}
		threads, total, err := c.ListThreads(t.Context(), client.ThreadFilter{Resource: "bob"})
		if err != nil || total != 1 || threads[0].ThreadID != "t1" || threads[0].AgentID != "support" || threads[0].Runs != 1 || !threads[0].UpdatedAt.After(threads[0].CreatedAt) {
			t.Errorf("threads %+v, %v", threads, err)
		}
		if none, _, err := c.ListThreads(t.Context(), client.ThreadFilter{Resource: "eve"}); err != nil || len(none) != 0 {
			t.Errorf("threads of another: %+v, %v", none, err)
		}
		w.Check(true)
	})
}

// A deleted thread has nothing left but that it was deleted: its open run is cancelled, its grant taken back, what tools kept
// is gone, and what its runs write later too. A run that is asked for afterwards begins it anew; threads of others stay.
func TestB13_12_DeletionOfAThread(t *testing.T) {
	t.Parallel()
	for name, all := range map[string]bool{"thread": false, "resource": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := New(t, paysSecretly())
				w.StartAll()
				ask := w.AwaitAsk(w.inThread("r1", "t1"), patience)
				w.Decide("alice", events.DecisionRequested{
					Decision: events.Approve, ToolCallID: ask.ToolCallID, Fingerprint: ask.Fingerprint,
					Grant: &events.GrantTerms{Scope: events.ScopeThread, Uses: 1, For: events.Duration(time.Hour), When: "args.orderId == '7'"},
				})
				w.AwaitEnd("r1", patience)
				w.RequestAs("bob", events.RunRequested{
					AgentID: "support", RunID: "r2", ThreadID: "t1", ResourceID: "bob", Memory: &events.Memory{LastMessages: new(int)},
					Messages: events.Prompt{events.TextMessage(events.RoleUser, "again")},
				})
				w.AwaitAsk(refundOf("r2"), patience)
				w.RequestAs("bob", events.RunRequested{
					AgentID: "support", RunID: "r3", ThreadID: "t1", ResourceID: "eve",
					Messages: events.Prompt{events.TextMessage(events.RoleUser, "mine")},
				})
				w.AwaitAsk(refundOf("r3"), patience)
				_, err := w.Conn().Keep(t.Context(), events.TasksKey("bob", "t1", ""), RawJSON(`[]`), 0)
				w.must(err)
				c := client.New(w.Conn(), client.Config{Principal: "bob"})
				thread := client.Thread{ResourceID: "bob", ThreadID: "t1"}
				if all {
					thread.ThreadID = ""
				}
				d, err := c.DeleteThread(t.Context(), thread, all, "asked")
				w.must(err)
				if d.Kept[events.StreamRuns] != "24h0m0s" || d.Kept[events.BucketBlobs] != "unlimited" {
					t.Errorf("kept %v", d.Kept)
				}
				if end := w.AwaitEnd("r2", patience); end.Outcome != events.RunCancelled {
					t.Errorf("the open run ended as %s", end.Outcome)
				}
				w.pause(time.Minute)
				thread.ThreadID = "t1"
				if _, err := c.Messages(t.Context(), thread, 0, 0); events.CodeOf(err) != events.CodeNotFound {
					t.Errorf("messages of a deleted thread: %v", err)
				}
				w.erased("bob")
				if grants, err := c.Grants(t.Context(), client.GrantFilter{Thread: "t1"}); err != nil || len(grants) != 0 {
					t.Errorf("grants %+v, %v", grants, err)
				}
				if kept, _, err := w.Conn().Kept(t.Context(), events.TasksKey("bob", "t1", "")); err != nil || kept != nil {
					t.Errorf("kept %s, %v", kept, err)
				}
				others, err := w.Conn().ThreadEntries(t.Context(), "eve", "t1")
				w.must(err)
				if len(others) != 1 || others[0].Erased {
					t.Errorf("another's thread %+v", others)
				}
				w.AwaitAsk(w.inThread("r4", "t1"), patience)
				synctest.Wait()
				page, err := c.Messages(t.Context(), thread, 0, 0)
				w.must(err)
				if len(page.Messages) != 2 || page.Messages[0].RunID != "r4" {
					t.Errorf("messages %+v", page.Messages)
				}
				if threads, n, err := c.ListThreads(t.Context(), client.ThreadFilter{}); err != nil || n != 2 {
					t.Errorf("threads %+v, %v", threads, err)
				}
				w.Check(true)
			})
		})
	}
}

// erased fails the test when something is left of the threads of a resource.
func (w *World) erased(resource string) {
	w.T.Helper()
	all, err := w.Conn().AllThreadEntries(w.T.Context())
	w.must(err)
	for _, e := range all {
		if e.ResourceID == resource && (!e.Erased || len(e.Messages) > 0) {
			w.T.Errorf("left of a deleted thread: %+v", e)
		}
	}
}

// Who may start and administer nothing may delete nothing; a request that is no deletion is refused too.
func TestB13_12_RefusedDeletions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := paysSecretly()
		o.People = map[string]events.PrincipalDef{"eve": {ID: "eve", Auth: events.AuthSubject, Scopes: []string{events.MayRead}}}
		w := New(t, o)
		w.StartAll()
		w.AwaitAsk(w.inThread("r1", "t1"), patience)
		thread := client.Thread{ResourceID: "bob", ThreadID: "t1"}
		_, err := client.New(w.Conn(), client.Config{Principal: "eve"}).DeleteThread(t.Context(), thread, false, "")
		if events.CodeOf(err) != events.CodeForbidden {
			t.Errorf("eve's deletion: %v", err)
		}
		// A subject that names another thread than the event.
		w.publish(w.Conn().Namespace().InThread("bob", events.DeletionRequested{ResourceID: "bob", ThreadID: "t2"}), "", "bob",
			events.DeletionRequested{ResourceID: "bob", ThreadID: "t1"})
		w.pause(time.Minute)
		list, err := w.Conn().ThreadEntries(t.Context(), "bob", "t1")
		w.must(err)
		if len(list) != 1 || list[0].Erased {
			t.Errorf("entries %+v", list)
		}
		w.Check(true)
	})
}
