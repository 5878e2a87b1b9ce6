package planner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// onRequest starts a run: a request becomes the first fact of its chain, or is refused with a note to its sender.
func (s *Service) onRequest(ctx context.Context, d jetstream.Delivery) error {
	in, err := s.ns.ParseInbox(d.Subject)
	if err == nil && in.Verb == events.VerbThread {
		return s.onDeletion(ctx, d, in)
	}
	if err != nil || in.Verb != events.VerbStart {
		return jetstream.Final(fmt.Errorf("subject %s is not a start's", d.Subject))
	}
	req, refusal := readRequest(d.Event, in)
	if refusal != nil {
		return s.refuse(ctx, d, in, req.RunID, refusal)
	}
	if refusal, err := s.mayStart(ctx, in.Principal); refusal != nil || err != nil {
		if refusal == nil {
			return err
		}
		return s.refuse(ctx, d, in, req.RunID, refusal)
	}
	defs, refusal, err := s.pin(ctx, req)
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return s.refuse(ctx, d, in, req.RunID, refusal)
	}
	data := events.RunStarted{
		RunID: req.RunID, RootRunID: req.RunID, AgentID: agentOf(req), Requester: in.Principal, RequesterID: senderOf(d.Event, in),
		Path: []events.PathEntry{{AgentID: agentOf(req), RunID: req.RunID}}, InboxSeq: d.Event.Seq,
		RequestID: d.Event.ID, Request: req, Definitions: defs, Signed: signed(d),
	}
	if data.Recalled, err = s.recallOf(ctx, req, defs); err != nil {
		return err
	}
	place := s.ns.Start(req.RunID)
	e, err := s.origin.Fact(place, data, d.Event)
	if err != nil {
		return s.refuse(ctx, d, in, req.RunID, events.Errorf(events.CodeInvalidRequest, "%v", err))
	}
	a, err := s.conn.Append(ctx, events.First(place), e)
	if err != nil {
		if errors.Is(err, jetstream.ErrTooLarge) {
			return s.refuse(ctx, d, in, req.RunID, events.Errorf(events.CodeTooLarge, "the request is too large: %v", err))
		}
		return fmt.Errorf("append start of %s: %w", req.RunID, err)
	}
	if a.Outcome == jetstream.Stored {
		s.remember(events.StateOf(data, a.Last), a.Last)
		return nil
	}
	return s.exists(ctx, d, in, req)
}

// agentOf is the agent that a run names in its facts: the reserved one when it is of one tool.
func agentOf(req events.RunRequested) string {
	if req.ToolID != "" {
		return events.TokenTool
	}
	return req.AgentID
}

// mayStart refuses a principal that is known to start nothing. The subject is what proves who asks; one that nobody has
// defined may start what it has the right to ask for.
func (s *Service) mayStart(ctx context.Context, principal string) (*events.Error, error) {
	raw, err := s.conn.NamedOf(ctx, events.RegistryPrincipal, principal)
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil, nil //nolint:nilnil // nothing is wrong
	}
	if err != nil {
		return nil, fmt.Errorf("read principal: %w", err)
	}
	var def events.PrincipalDef
	if err := json.Unmarshal(raw, &def); err != nil {
		return nil, jetstream.Final(fmt.Errorf("principal %s: %w", principal, err))
	}
	return def.Lacks(events.MayStart), nil
}

// senderOf is the id of who asks, when the request names it: that of which the subject holds the token.
func senderOf(e events.Event, in events.Inbox) string {
	if events.Token(e.AuthID) != in.Principal {
		return ""
	}
	return e.AuthID
}

// readRequest reads and checks what a start says, as far as that needs no look at the registry. The run id is the
// event's own when the request names none, so that a request that is delivered twice meets its own run.
func readRequest(e events.Event, in events.Inbox) (events.RunRequested, *events.Error) {
	bad := func(format string, args ...any) *events.Error {
		return events.Errorf(events.CodeInvalidRequest, format, args...)
	}
	if want := events.TypeOf[events.RunRequested](); e.Type != want {
		return events.RunRequested{}, bad("type is %s; a start has type %s", e.Type, want)
	}
	req, err := events.Data[events.RunRequested](e)
	if err != nil {
		return req, bad("%v", err)
	}
	req.RunID = cmp.Or(req.RunID, e.ID)
	if !events.ValidRunID(req.RunID) {
		return req, bad("runId %q: use 1 to 64 letters, digits, hyphens and underscores", req.RunID)
	}
	check := checkAgentStart
	if req.ToolID != "" || in.Agent == events.TokenTool {
		check = checkToolStart
	}
	if refusal := check(req, in); refusal != nil {
		return req, refusal
	}
	for _, object := range []*json.RawMessage{&req.RequestContext, &req.ModelSettings, &req.ProviderOptions} {
		if string(*object) == "null" {
			*object = nil
		}
	}
	for _, issue := range slices.Concat(req.ToolCallConcurrency.Check(), req.Memory.Check(), req.StructuredOutput.Check()) {
		return req, bad("%s: %s", issue.Field, issue.Message)
	}
	if refusal := checkHooks(req.Hooks); refusal != nil {
		return req, refusal
	}
	return req, checkMessages(req.Messages)
}

// checkHooks refuses hooks that no gate could honour.
func checkHooks(hooks events.Hooks) *events.Error {
	issues := hooks.Check()
	for _, r := range hooks.Rules() {
		if _, err := rule.Compile(r.When); err != nil {
			issues = append(issues, events.Issue{Field: "hooks." + r.Name + ".when", Message: err.Error()})
		}
	}
	if len(issues) == 0 {
		return nil
	}
	e := events.Errorf(events.CodeInvalidRequest, "%s %s", issues[0].Field, issues[0].Message)
	e.Issues = issues
	return e
}

// checkAgentStart checks what a start of an agent must say.
func checkAgentStart(req events.RunRequested, in events.Inbox) *events.Error {
	bad := func(format string, args ...any) *events.Error {
		return events.Errorf(events.CodeInvalidRequest, format, args...)
	}
	switch {
	case req.AgentID == "":
		return bad("agentId is missing")
	case req.AgentID == events.TokenTool: // rules and lists would take its runs for those of single tools
		return bad("agentId %q is reserved for runs of a single tool", req.AgentID)
	case events.Token(req.AgentID) != in.Agent:
		return bad("agentId is %q, the subject names %q", req.AgentID, in.Agent)
	case len(req.Messages) == 0:
		return bad("messages is empty: give a text or a list of messages")
	}
	return nil
}

func checkMessages(messages []events.Message) *events.Error {
	for i, m := range messages {
		switch m.Role {
		case events.RoleSystem, events.RoleUser, events.RoleAssistant, events.RoleTool:
		default:
			return events.Errorf(events.CodeInvalidRequest, "messages[%d]: role is %q; use system, user, assistant or tool", i, m.Role)
		}
		if len(m.Parts) == 0 {
			return events.Errorf(events.CodeInvalidRequest, "messages[%d] has no parts", i)
		}
	}
	return nil
}

// pin finds the definitions that the run keeps for as long as it lasts.
func (s *Service) pin(ctx context.Context, req events.RunRequested) (events.Definitions, *events.Error, error) {
	if req.ToolID != "" {
		return s.pinTool(ctx, req.ToolID)
	}
	raw, err := s.conn.Named(ctx, events.RegistryAgent, req.AgentID)
	if errors.Is(err, jetstream.ErrNotFound) {
		return events.Definitions{}, events.NotFound("agent", "agent %q is not known; apply a weir.yaml that defines it", req.AgentID), nil
	}
	if err != nil {
		return events.Definitions{}, nil, fmt.Errorf("read agent %s: %w", req.AgentID, err)
	}
	var def events.AgentDef
	if err := json.Unmarshal(raw, &def); err != nil {
		return events.Definitions{}, events.Errorf(events.CodeInvalidDefinition, "agent %s: %v", req.AgentID, err), nil
	}
	if issues := def.ToolSearch.Check(def.Tools); len(issues) > 0 {
		return events.Definitions{}, events.Errorf(events.CodeInvalidDefinition, "agent %s: %s %s", req.AgentID, issues[0].Field, issues[0].Message), nil
	}
	pins, err := s.pinned(ctx, def, events.Digest(raw))
	if err != nil {
		return events.Definitions{}, nil, err
	}
	return pins, s.checkOptions(req, def, pins), nil
}

// pinned are the definitions of an agent, and those of its tools and sub-agents as they are now. Of what is not there the
// model is not shown anything: a tool that nobody hosts yet, an agent that was not applied.
func (s *Service) pinned(ctx context.Context, def events.AgentDef, digest string) (events.Definitions, error) {
	pins := events.Definitions{Agent: digest, Tools: map[string]string{}}
	if len(def.Agents) > 0 {
		pins.Agents = map[string]string{}
	}
	for _, of := range []struct {
		kind string
		ids  map[string]string
		pins map[string]string
	}{{events.RegistryTool, def.AllTools(), pins.Tools}, {events.RegistryAgent, def.Agents, pins.Agents}} {
		for key, id := range of.ids {
			raw, err := s.conn.Named(ctx, of.kind, id)
			if errors.Is(err, jetstream.ErrNotFound) {
				continue
			}
			if err != nil {
				return pins, fmt.Errorf("read %s %s: %w", of.kind, id, err)
			}
			of.pins[key] = events.Digest(raw)
		}
	}
	return pins, nil
}

// checkOptions refuses what the run could not honour.
func (s *Service) checkOptions(req events.RunRequested, def events.AgentDef, pins events.Definitions) *events.Error {
	if refusal := checkClientTools(req, def); refusal != nil {
		return refusal
	}
	tools := maps.Clone(pins.Tools)
	for key := range pins.Agents {
		tools[events.AgentPrefix+key] = ""
	}
	for key := range req.ClientTools {
		tools[key] = ""
	}
	for _, key := range def.ToolSearch.Keys() { // by which others are found: they need no pins
		if events.IsToolFinder(key) {
			tools[key] = ""
		}
	}
	known := slices.Sorted(maps.Keys(tools))
	if req.ActiveTools != nil {
		ourTools := def.AllTools()
		for _, key := range *req.ActiveTools {
			_, ours := ourTools[key]
			sub, delegates := strings.CutPrefix(key, events.AgentPrefix)
			ours = ours || delegates && def.Agents[sub] != ""
			ours = ours || def.ToolSearch != nil && events.IsToolFinder(key)
			if _, clients := req.ClientTools[key]; !ours && !clients {
				return events.Errorf(events.CodeInvalidRequest, "activeTools: agent %s has no tool %q; it has: %s",
					def.ID, key, strings.Join(known, ", "))
			}
		}
	}
	if key, ok := strings.CutPrefix(req.ToolChoice, "tool:"); ok {
		if def.ToolSearch.Finds(key, req.ClientTools) {
			return events.Errorf(events.CodeInvalidRequest, "toolChoice: the model must load the tool %q before it can call it", key)
		}
		if _, ok := tools[key]; !ok {
			return events.Errorf(events.CodeInvalidRequest, "toolChoice: agent %s has no tool %q; it has: %s",
				def.ID, key, strings.Join(known, ", "))
		}
	} else if !slices.Contains([]string{"", "auto", "none", "required"}, req.ToolChoice) {
		return events.Errorf(events.CodeInvalidRequest, "toolChoice is %q; use auto, none, required or tool:<key>", req.ToolChoice)
	}
	asked := &events.State{RequestContext: req.RequestContext, Options: events.Options{Instructions: req.Instructions}}
	if _, err := asked.Told(def); err != nil {
		return events.Errorf(events.CodeInvalidRequest, "the instructions of agent %s, with this requestContext: %v", def.ID, err)
	}
	return s.checkModels(req, def)
}

// checkModels refuses models that cannot be opened: the run's, its fallbacks, and one that makes the value it is asked for.
func (s *Service) checkModels(req events.RunRequested, def events.AgentDef) *events.Error {
	ids := def.Models()
	if req.Model != "" {
		ids = append(ids, req.Model)
	}
	if want := req.StructuredOutput; want != nil && want.Model != "" {
		ids = append(ids, want.Model)
	}
	for _, id := range ids {
		if _, _, err := s.cfg.Models.Model(id); err != nil {
			return events.Errorf(events.CodeInvalidRequest, "%v", err)
		}
	}
	return nil
}

// exists handles a start whose run id is taken: by this very request, by one that says the same, or by another.
func (s *Service) exists(ctx context.Context, d jetstream.Delivery, in events.Inbox, req events.RunRequested) error {
	first, err := s.conn.Fact(ctx, s.ns.Start(req.RunID))
	if err != nil && !errors.Is(err, jetstream.ErrNotFound) {
		return fmt.Errorf("read start of %s: %w", req.RunID, err)
	}
	if err == nil {
		started, err := events.Data[events.RunStarted](first)
		if err != nil {
			return jetstream.Final(err)
		}
		if started.RequestID == d.Event.ID || started.Requester == in.Principal && started.Request.Same(req) {
			return nil
		}
	}
	return s.refuse(ctx, d, in, req.RunID, events.Errorf(events.CodeRunExists, "run %s exists with another request", req.RunID))
}

// signed keeps the signature of a start, verbatim, for rules that ask for it.
func signed(d jetstream.Delivery) *events.Signed {
	if d.Event.Signature.Sig == "" {
		return nil
	}
	return &events.Signed{Payload: string(d.Event.Payload), Subject: d.Subject, Key: d.Event.Signature.Key, Sig: d.Event.Signature.Sig}
}

// refuse tells the sender of a start why it did not count.
func (s *Service) refuse(ctx context.Context, d jetstream.Delivery, in events.Inbox, run string, why *events.Error) error {
	id := cmp.Or(d.Event.ID, "inbox-"+strconv.FormatUint(d.Event.Seq, 10))
	run = cmp.Or(run, id)
	subject := s.ns.Note(in.Principal, run, events.TokenRun)
	e, err := s.origin.Request(subject, run, events.RunRefused{RunID: run, EventID: id, Error: *why}, d.Event)
	if err != nil {
		return jetstream.Final(err)
	}
	if err := s.conn.Note(ctx, subject, e); err != nil {
		s.log.WarnContext(ctx, "note not published", "runId", run, "error", err)
	}
	s.log.InfoContext(ctx, "start refused", "runId", run, "code", string(why.Code), "error", why.Message)
	return nil
}

// onMalformed refuses what came to the inbox and is no event.
func (s *Service) onMalformed(ctx context.Context, d jetstream.Delivery, _ []byte, cause error) error {
	in, err := s.ns.ParseInbox(d.Subject)
	if err != nil {
		return jetstream.Final(cause)
	}
	return s.refuse(ctx, d, in, "", events.Errorf(events.CodeInvalidRequest, "not a CloudEvent of a start: %v", cause))
}
