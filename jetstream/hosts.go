package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

// answersAtOnce bounds how many requests on one subject are answered at once.
const answersAtOnce = 16

// AskHost sends a request to whoever hosts something (subjects of [events.Namespace.ToolService]) and waits for the
// answer until ctx ends, 10 s at most. Nothing is stored: [ErrUnavailable] says that nobody listens, [ErrTimeout] that
// nobody has answered. What comes back is what a host says, and no more than that.
func (c *Conn) AskHost(ctx context.Context, subject string, body []byte) ([]byte, error) {
	reply, err := c.request(ctx, answerTime, &nats.Msg{Subject: subject, Data: body})
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", subject, err)
	}
	return reply.Data, nil
}

// AskHook asks a hook service about a call, until ctx ends. Whatever is not understood to the last word is an error: a service
// that refuses the request, and an answer that is none.
func (c *Conn) AskHook(ctx context.Context, service string, req events.HookRequest) (events.HookAnswer, error) {
	req.Namespace = c.Namespace()
	body, err := events.Marshal(req)
	if err != nil {
		return events.HookAnswer{}, fmt.Errorf("ask a hook: %w", err)
	}
	msg := &nats.Msg{Subject: c.ns.HookService(service), Data: body}
	if err := c.checkSize(msg); err != nil {
		return events.HookAnswer{}, fmt.Errorf("ask %s: %w", msg.Subject, err)
	}
	reply, err := c.request(ctx, answerTime, msg)
	if err != nil {
		return events.HookAnswer{}, fmt.Errorf("ask %s: %w", msg.Subject, err)
	}
	if refusalOf(reply) != nil {
		return events.HookAnswer{}, fmt.Errorf("ask %s: the service refused the request", msg.Subject)
	}
	answer, err := events.ParseHookAnswer(reply.Data)
	if err != nil {
		return events.HookAnswer{}, fmt.Errorf("ask %s: %w", msg.Subject, err)
	}
	return answer, nil
}

// TransformAtHost asks a host of a tool how a value may be shown.
func (c *Conn) TransformAtHost(ctx context.Context, tool events.Manifest, req events.TransformRequest) (events.TransformAnswer, error) {
	var answer events.TransformAnswer
	req.Namespace = c.Namespace()
	body, err := events.Marshal(req)
	if err != nil {
		return answer, fmt.Errorf("ask for a transform: %w", err)
	}
	raw, err := c.AskHost(ctx, c.Namespace().ToolService(tool.Pool, tool.ID, events.VerbTransform), body)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return answer, errors.New("a transform that is no answer") // the error would quote it
	}
	return answer, nil
}

// AnswerAsHost answers requests on a subject until ctx ends, then waits for the answers that are under way. Of the
// connections of one group one gets each request; nil is no answer.
func (c *Conn) AnswerAsHost(ctx context.Context, subject, group string, answer func(context.Context, []byte) []byte) error {
	slots := make(chan struct{}, answersAtOnce)
	var wg sync.WaitGroup
	stop, err := c.listenIn(ctx, subject, group, func(msg *nats.Msg) {
		if !mayAnswer(msg.Reply) {
			return
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if body := answer(ctx, msg.Data); body != nil {
				_ = msg.Respond(body) // who asked does without when it is lost
			}
		})
	})
	switch {
	case err != nil && (ctx.Err() == nil || errors.Is(err, ErrPermission)):
		return err
	case err == nil:
		<-ctx.Done()
		stop()
	}
	wg.Wait()
	return nil
}

// mayAnswer says whether a reply goes where replies go. The server lets who answers publish on any subject that a
// request names, so one that is Weir's own or the server's would let the asker write there.
func mayAnswer(reply string) bool {
	return reply != "" && !events.IsOurs(reply) && !strings.HasPrefix(reply, "$")
}
