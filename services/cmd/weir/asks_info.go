package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
)

// shownBytes is how much of a text is shown when not all of it was asked for.
const shownBytes = 4 << 10

func newAskInfoCommand(a *app) *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use: "info CALL", Short: "Look at a call that waits", Args: cobra.ExactArgs(1),
		Long: `Look at a call that waits: its arguments as they are frozen, with their size and digest, the rule that held it, who may
decide and how, how many must, what happens when nobody does, what the tool says it would do, and what the agent said before.
A call that was decided is refused with exit code 4 and says by whom.

What is long is cut, with its size and digest; --full shows all of it.

JSON: the data of the ask (event call.held): {"toolCallId", "runId", "rootRunId", "path", "agentId", "threadId", "resourceId",
"round", "kind", "toolName", "toolId", "toolVersion", "args", "argsSize", "argsDigest", "fingerprint", "reason", "allowed",
"approvers", "notRequester", "signed", "quorum", "suspendPayload", "resumeSchema", "preview", "lastWords", "effect", "askedAt",
"expiresAt", "onExpiry", "escalate", "escalatedTo", "remind", "reminders", …}.`,
		Example: `  weir approvals info order-1042=2-1
  weir approvals info order-1042 --full | less
  weir approvals info order-1042 -o json | jq .args`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, stop, err := a.client(cmd.Context())
			if err != nil {
				return err
			}
			defer stop()
			ask, err := c.Ask(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(ask, func(w io.Writer) { a.printAsk(w, *ask, full) })
		},
	}
	cmd.Flags().BoolVar(&full, "full", false, "cut nothing")
	return cmd
}

func (a *app) printAsk(w io.Writer, ask events.CallHeld, full bool) {
	limit := shownBytes
	if full {
		limit = 0
	}
	facts(w, slices.Concat(a.askOf(ask), a.howDecided(ask)))
	p := parts{w, limit}
	p.json("arguments", ask.Args)
	p.json("asks", ask.SuspendPayload)
	if ask.Kind != events.AskApproval {
		p.json("takes data of this schema", ask.ResumeSchema)
	}
	p.preview(ask.Preview)
	if words := ask.LastWords; words != nil {
		p.text("what the agent said before (the model's text; nobody has checked it)", plain(words.Text))
		if words.Truncated {
			_, _ = fmt.Fprintf(w, "… %s\n", sizeOf(words.Size, words.Digest))
		}
	}
}

// askOf says what a call is, and why it waits.
func (a *app) askOf(ask events.CallHeld) [][2]string {
	claimed := ""
	if ask.Claim != nil {
		claimed = fmt.Sprintf("by %s, %s, attempt %d", ask.Claim.By, a.when(ask.Claim.At), ask.Claim.Attempt)
	}
	var path []string // down to the run, when it is below another one
	for _, level := range ask.Path {
		path = append(path, level.AgentID+" ("+level.RunID+")")
	}
	if len(path) < 2 {
		path = nil
	}
	return [][2]string{
		{"call", ask.ToolCallID},
		{"tool", ask.ToolID + " " + ask.ToolVersion},
		{"title", ask.Title},
		{"kind", string(ask.Kind)},
		{"agent", ask.AgentID},
		{"run", ask.RunID},
		{"path", strings.Join(path, " → ")},
		{"thread", ask.ThreadID},
		{"resource", ask.ResourceID},
		{"round", strconv.Itoa(ask.Round)},
		{"effect", string(ask.Effect)},
		{"reason", ask.Reason.Text},
		{"rule", ask.Reason.Rule},
		{"rule failed", ask.Reason.Error},
		{"started", claimed},
	}
}

// howDecided says who may decide a call, how, and until when.
func (a *app) howDecided(ask events.CallHeld) [][2]string {
	allowed := make([]string, len(ask.Allowed))
	for i, d := range ask.Allowed {
		allowed[i] = string(d)
	}
	signed, noGrant, remind := "", "", ""
	if ask.Signed {
		signed = "with the decider's own key"
	}
	if ask.NoGrant {
		noGrant = "none: a person each time"
	}
	if ask.Remind > 0 {
		remind = "every " + time.Duration(ask.Remind).String()
	}
	return [][2]string{
		{"may decide", cmp.Or(mayDecide(ask.Open()), "everybody who decides")},
		{"escalated to", strings.Join(ask.EscalatedTo, ", ")},
		{"takes", strings.Join(allowed, ", ")},
		{"signed", signed},
		{"grants", noGrant},
		{"needs", a.needs(ask.Quorum)},
		{"asked", a.when(ask.AskedAt)},
		{"reminders", strings.Join(slices.DeleteFunc([]string{count(ask.Reminders), remind}, isEmpty), ", ")},
		{"escalates", a.escalates(ask)},
		{"expires", a.when(ask.ExpiresAt)},
		{"then", thenOf[cmp.Or(ask.OnExpiry, events.OnExpiryDecline)]},
		{"fingerprint", ask.Fingerprint},
		{"size", fmt.Sprintf("%d bytes", cmp.Or(ask.ArgsSize, len(ask.Args)))},
		{"digest", cmp.Or(ask.ArgsDigest, events.Digest(ask.Args))},
	}
}

func isEmpty(s string) bool { return s == "" }

// thenOf says what happens when an ask expires.
var thenOf = map[string]string{
	events.OnExpiryDecline:  "the call does not run, and its run goes on",
	events.OnExpiryFail:     "the call does not run, and its run fails",
	events.OnExpiryEscalate: "more people may decide",
}

// needs says how many approvals a call needs, and whose there are.
func (a *app) needs(q *events.Quorum) string {
	if q == nil {
		return ""
	}
	text := fmt.Sprintf("%d approvals", q.Need)
	if len(q.Votes) == 0 {
		return text
	}
	voters := make([]string, len(q.Votes))
	for i, v := range q.Votes {
		voters[i] = fmt.Sprintf("%s (%s)", v.Principal, a.when(v.At))
	}
	return text + "; so far " + strings.Join(voters, ", ")
}

// escalates says who may decide next when nobody does, stage by stage.
func (a *app) escalates(ask events.CallHeld) string {
	var stages []string
	for i, next := range ask.Escalate {
		if i == 0 && ask.OnExpiry == events.OnExpiryEscalate && next.At.After(ask.ExpiresAt) {
			next.At = ask.ExpiresAt
		}
		stages = append(stages, fmt.Sprintf("%s to %s", a.when(next.At), strings.Join(next.To, ", ")))
	}
	return strings.Join(stages, "; ")
}

// count is a number of things; none are not worth a word.
func count(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// parts writes longer texts under a title each.
type parts struct {
	w     io.Writer
	limit int // bytes; 0: none
}

// json writes a value.
func (p parts) json(title string, raw []byte) {
	if len(raw) > 0 {
		p.cut(title, indented(raw), len(raw), events.Digest(raw))
	}
}

// text writes a text that is fit to be shown.
func (p parts) text(title, text string) { p.cut(title, text, len(text), events.Digest([]byte(text))) }

// preview writes what a tool says that the call would do.
func (p parts) preview(raw []byte) {
	const title = "what the tool says that it would do"
	var v events.Preview
	switch {
	case len(raw) == 0:
		return
	case json.Unmarshal(raw, &v) != nil || v.Failed:
		p.text(title, "(it could not say)")
	case v.JSON != nil:
		p.json(title, v.JSON)
	default:
		p.text(title, plain(v.Text))
	}
	if v.Truncated {
		_, _ = fmt.Fprintln(p.w, "… and more, which is not kept")
	}
}

// cut leaves out what is too long, says how much that is, and how to see it.
func (p parts) cut(title, text string, size int, digest string) {
	if p.limit > 0 && len(text) > p.limit {
		text = cutText(text, p.limit) + "\n… " + sizeOf(size, digest) + "; --full shows them"
	}
	_, _ = fmt.Fprintf(p.w, "\n%s\n%s\n", title, text)
}

// cutText is the beginning of a text, whole characters only.
func cutText(text string, limit int) string {
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

func sizeOf(size int, digest string) string {
	text := fmt.Sprintf("%d bytes in all", size)
	if digest != "" {
		text += ", " + oneLine(digest)
	}
	return text
}

// argsLine shows arguments on one line. What is cut is named by its size and digest.
func argsLine(raw []byte) string {
	const limit = 200
	text := compact(raw)
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	return short(text, limit) + " (" + sizeOf(len(raw), events.Digest(raw)) + ")"
}
