package events

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Tokens that Weir reserves. None of them is ever made by [Token], so no id from outside can look like one.
const (
	TokenAbsent    = "=0"       // an id that is not there
	TokenAuto      = "=auto"    // principal: the planner's automatic resume
	TokenPlanner   = "=planner" // principal: a planner that must end a run with open calls
	TokenAgentPool = "=agent"   // pool: the planners, for delegated calls
	TokenTool      = "=tool"    // agent: a run of one tool
	TokenProbe     = "=probe"   // run: self-test of the guards
	TokenRun       = "=run"     // call of what concerns the run itself, or the one call of it that waits
	TokenGrant     = "=grant"   // the same place of a note that concerns a grant
)

// MaxID is the longest id of an agent, a tool or anything else that people name, in bytes.
const MaxID = 256

// MaxToken is the length up to which an id stands in a subject as it is.
const MaxToken = 64

var tokenEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Token turns an id from outside into one token of a subject, key or consumer name. It is the only way to do so.
// An id of up to 64 letters, digits, hyphens and underscores stands as it is; any other becomes "=b" and its base32
// form, or "=h" and its SHA-256 when that would be longer than [MaxToken]; an empty id is [TokenAbsent].
func Token(id string) string {
	switch {
	case id == "":
		return TokenAbsent
	case literal(id):
		return id
	}
	if n := tokenEncoding.EncodedLen(len(id)); n <= MaxToken-2 {
		return "=b" + tokenEncoding.EncodeToString([]byte(id))
	}
	sum := sha256.Sum256([]byte(id))
	return "=h" + tokenEncoding.EncodeToString(sum[:])
}

func literal(id string) bool {
	if id == "" || len(id) > MaxToken {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// ValidRunID reports whether a start request may bring this run id: 1 to 64 letters, digits, hyphens, underscores.
func ValidRunID(id string) bool { return literal(id) }

// IsRunID reports whether id is the id of a run of any depth. Only such ids stand in subjects as they are.
func IsRunID(id string) bool { return isRunID(id) }

// isRunID reports whether id is the id of a run of any depth: a literal, then "=<step>-<i>" once per level.
func isRunID(id string) bool {
	base, rest, nested := strings.Cut(id, "=")
	if !literal(base) {
		return false
	}
	for nested {
		var place string
		place, rest, nested = strings.Cut(rest, "=")
		if _, _, ok := parseCallToken(place); !ok {
			return false
		}
	}
	return true
}

// runToken is a run id as it stands in a subject. What is not a run id becomes a token that no run has.
func runToken(run string) string {
	if isRunID(run) {
		return run
	}
	return Token(run)
}

// A CallID says which call of which run is meant. Its text form is the toolCallId.
type CallID struct {
	Run   string
	Step  int // from 1
	Index int // place within the step, from 1
}

// String is the toolCallId: "<run>=<step>-<i>". It is also the run id of the child when the call is delegated.
func (c CallID) String() string { return c.Run + "=" + c.Token() }

// Token is the call's place in its run, "<step>-<i>", as it stands in subjects.
func (c CallID) Token() string { return strconv.Itoa(c.Step) + "-" + strconv.Itoa(c.Index) }

// CompareCalls orders toolCallIds by run, step and place; what is none comes first.
func CompareCalls(a, b string) int {
	x, _ := ParseCallID(a)
	y, _ := ParseCallID(b)
	return cmp.Or(strings.Compare(x.Run, y.Run), cmp.Compare(x.Step, y.Step), cmp.Compare(x.Index, y.Index),
		strings.Compare(a, b))
}

// ErrBadID says that a text is not an id of the form that is needed.
var ErrBadID = errors.New("malformed id")

// ParseCallID reads a toolCallId. The run is what stands before the last "=".
func ParseCallID(s string) (CallID, error) {
	at := strings.LastIndexByte(s, '=')
	if at < 0 || !isRunID(s[:at]) {
		return CallID{}, fmt.Errorf("%w: %q is not a toolCallId (<runId>=<step>-<i>)", ErrBadID, s)
	}
	return CallOf(s[:at], s[at+1:])
}

// CallOf names a call by its run and its token "<step>-<i>".
func CallOf(run, token string) (CallID, error) {
	step, index, ok := parseCallToken(token)
	if !ok || !isRunID(run) {
		return CallID{}, fmt.Errorf("%w: call %q of run %q", ErrBadID, token, run)
	}
	return CallID{Run: run, Step: step, Index: index}, nil
}

func parseCallToken(s string) (step, index int, ok bool) {
	a, b, found := strings.Cut(s, "-")
	if !found {
		return 0, 0, false
	}
	step, ok1 := parseCount(a)
	index, ok2 := parseCount(b)
	return step, index, ok1 && ok2
}

// parseCount reads a number from 1 in its one canonical form.
func parseCount(s string) (int, bool) {
	if s == "" || len(s) > 6 || s[0] == '0' {
		return 0, false
	}
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, true
}

// Namespace is a tenant or a shard of one: the second token of every subject and a part of every stream's name.
type Namespace string

// DefaultNamespace is used where none is given.
const DefaultNamespace Namespace = "default"

// ParseNamespace accepts what can stand in subjects and stream names: 1 to 32 lower-case letters, digits and hyphens.
func ParseNamespace(s string) (Namespace, error) {
	ok := s != "" && len(s) <= 32
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-'
	}
	if !ok {
		return "", fmt.Errorf("%w: namespace %q: use 1 to 32 lower-case letters, digits and hyphens", ErrBadID, s)
	}
	return Namespace(s), nil
}

// below is a subject of the namespace: its tokens, joined.
func (ns Namespace) below(tokens ...string) string {
	var room [subjectRoom]byte
	return string(join(ns.append(room[:0]), tokens...))
}

func (ns Namespace) root() string { return prefix + string(ns) + "." }

const prefix = "weir."

// IsOurs reports whether a subject is one of Weir's, of whatever namespace.
func IsOurs(subject string) bool { return strings.HasPrefix(subject, prefix) }

// Names of streams and buckets, without the namespace.
const (
	StreamInbox     = "inbox"
	StreamRuns      = "runs"
	StreamChunks    = "chunks"
	StreamTimers    = "timers"
	StreamThreads   = "threads"
	StreamAudit     = "audit"
	StreamDead      = "dead"
	BucketSuspended = "suspended"
	BucketRegistry  = "registry"
	BucketTasks     = "tasks"
	BucketGrants    = "grants"
	BucketBlobs     = "blobs"
)

// Store is the full name of a stream or bucket, "weir_<ns>_<name>".
func (ns Namespace) Store(name string) string { return "weir_" + string(ns) + "_" + name }

// Subjects of requests: the inbox, where writers outside Weir publish.

// InStart is where a principal asks for a run of an agent; [TokenTool] as agent starts a single tool.
func (ns Namespace) InStart(principal, agent string) string {
	return ns.below("in.start", nameToken(principal), nameToken(agent))
}

// InCancel is where a principal asks for the end of a run.
func (ns Namespace) InCancel(principal, run string) string {
	return ns.below("in.cancel", nameToken(principal), runToken(run))
}

// InDecide is where a principal decides a held call.
func (ns Namespace) InDecide(principal string, call CallID) string {
	return ns.below("in.decide", nameToken(principal), runToken(call.Run), call.Token())
}

// InDecideRun is where a principal decides the one call of a run that waits, without naming it.
func (ns Namespace) InDecideRun(principal, run string) string {
	return ns.below("in.decide", nameToken(principal), runToken(run), TokenRun)
}

// InGrant is where a principal asks for a standing approval, or takes one back.
func (ns Namespace) InGrant(principal, grant string) string {
	return ns.root() + "in.grant." + nameToken(principal) + "." + Token(grant)
}

// SamePrincipal reports whether two names are of one principal: by its id, or by the token that subjects hold.
func SamePrincipal(a, b string) bool { return nameOrToken(a) == nameOrToken(b) }

// agentToken is the token of an agent as keys hold it. A run of one tool has the reserved one, which no agent's id gives.
func agentToken(id string) string {
	if id == TokenTool {
		return id
	}
	return Token(id)
}

// nameToken lets the reserved names of Weir stand and encodes everything else.
func nameToken(id string) string {
	switch id {
	case TokenAuto, TokenPlanner, TokenAgentPool, TokenTool:
		return id
	}
	return Token(id)
}

// Verbs of the inbox.
const (
	VerbStart  = "start"
	VerbCancel = "cancel"
	VerbDecide = "decide"
	VerbThread = "thread"
	VerbGrant  = "grant"
)

// Inbox is the parsed subject of a request.
type Inbox struct {
	Verb      string
	Principal string // token
	Agent     string // token; of a start
	Run       string // of a cancel or decision
	Call      string // token; of a decision; TokenRun means the one call that waits
	Grant     string // token; of a grant that is asked for or taken back
	Resource  string // token; of a deletion
	Thread    string // token; of a deletion: all of the resource are =all
}

// ParseInbox reads the subject of a request.
func (ns Namespace) ParseInbox(subject string) (Inbox, error) {
	rest, ok := strings.CutPrefix(subject, ns.root()+"in.")
	part := strings.Split(rest, ".")
	switch {
	case !ok:
	case len(part) == 3 && part[0] == VerbStart:
		return Inbox{Verb: VerbStart, Principal: part[1], Agent: part[2]}, nil
	case len(part) == 3 && part[0] == VerbCancel:
		return Inbox{Verb: VerbCancel, Principal: part[1], Run: part[2]}, nil
	case len(part) == 4 && part[0] == VerbDecide:
		return Inbox{Verb: VerbDecide, Principal: part[1], Run: part[2], Call: part[3]}, nil
	case len(part) == 4 && part[0] == VerbThread:
		return Inbox{Verb: VerbThread, Principal: part[1], Resource: part[2], Thread: part[3]}, nil
	case len(part) == 3 && part[0] == VerbGrant:
		return Inbox{Verb: VerbGrant, Principal: part[1], Grant: part[2]}, nil
	}
	return Inbox{}, fmt.Errorf("%w: subject %q is not a request's", ErrBadID, subject)
}

// Filters of the inbox's consumers and its whole.

// InAll covers every request.
func (ns Namespace) InAll() string { return ns.root() + "in.>" }

// InVerb covers every request of one verb, as the filter of a durable.
func (ns Namespace) InVerb(verb string) string {
	if verb == VerbDecide || verb == VerbThread {
		return ns.root() + "in." + verb + ".*.*.*"
	}
	return ns.root() + "in." + verb + ".*.*"
}

// Chunk is where the chunks of a run are stored.
func (ns Namespace) Chunk(run string) string { return ns.below("chunk", runToken(run)) }

// Chunks covers the chunks of every run.
func (ns Namespace) Chunks() string { return ns.root() + "chunk.*" }

// Live is where stored chunks of a run are republished.
func (ns Namespace) Live(run string) string { return ns.below("live", runToken(run)) }

// LiveTarget is the republish target of the chunks stream: the run's token is kept.
func (ns Namespace) LiveTarget() string { return ns.root() + "live.{{wildcard(1)}}" }

// TimerSet is where a timer is scheduled; setting the same id again replaces it.
func (ns Namespace) TimerSet(id string) string { return ns.below("timer.set", Token(id)) }

// TimerFire is where a timer fires.
func (ns Namespace) TimerFire(id string) string { return ns.below("timer.fire", Token(id)) }

// Timers covers timers that are set and those that fired; TimersFired only the latter.
func (ns Namespace) Timers() string { return ns.root() + "timer.>" }

// TimersFired covers every timer that fired.
func (ns Namespace) TimersFired() string { return ns.root() + "timer.fire.*" }

// TimerID names the deadline of one round of a call.
func TimerID(call CallID, round int) string {
	return call.String() + "_" + strconv.Itoa(round)
}

// Dead is where a service keeps what it had to give up, by run (or [TokenAbsent]).
func (ns Namespace) Dead(service, run string) string {
	run = strings.TrimSpace(run)
	if run == "" {
		return ns.root() + "dead." + Token(service) + "." + TokenAbsent
	}
	return ns.root() + "dead." + Token(service) + "." + runToken(run)
}

// DeadAll covers everything that was given up.
func (ns Namespace) DeadAll() string { return ns.root() + "dead.*.*" }

// Note is where the sender of a request hears of a refusal. Call is a call's token or [TokenRun].
func (ns Namespace) Note(principal, run, call string) string {
	if _, _, ok := parseCallToken(call); !ok {
		call = TokenRun
	}
	return ns.root() + "note." + nameOrToken(principal) + "." + runToken(run) + "." + call
}

// NoteOfGrant is where somebody who asked for a standing approval, or took one back, hears of a refusal.
func (ns Namespace) NoteOfGrant(principal, grant string) string {
	return ns.below("note", nameOrToken(principal), nameOrToken(grant), TokenGrant)
}

// Notes covers what one principal is told.
func (ns Namespace) Notes(principal string) string {
	return ns.root() + "note." + nameOrToken(principal) + ".>"
}

// nameOrToken keeps what already is a token, so that a note goes to the sender of exactly the subject that came in.
func nameOrToken(s string) string {
	if strings.HasPrefix(s, "=") && literal(strings.TrimPrefix(s, "=")) {
		return s
	}
	return Token(s)
}

// Subjects of the log as wholes: what the stream takes in, what it stores, and what its consumers filter.

// PutAll is the one subject space of ingestion of the log: facts of runs and of grants.
func (ns Namespace) PutAll() []string {
	return []string{ns.root() + "put.run.>", ns.root() + "put.grant.>"}
}

// PutTransform maps ingest names to stored names.
func (ns Namespace) PutTransform() (from, to string) { return ns.root() + "put.>", ns.root() + ">" }

// GrantProbe is where the gate proves at its start that the server enforces guards on uses of grants.
func (ns Namespace) GrantProbe(id string) (ingest, stored string) {
	tail := "grant." + TokenProbe + ".use." + Token(id)
	return ns.root() + "put." + tail, ns.root() + tail
}

// IsProbe reports whether a stored subject is that of a self-test, of either kind.
func IsProbe(subject string) bool {
	part := strings.Split(subject, ".")
	return len(part) == 6 && part[0] == "weir" && part[3] == TokenProbe &&
		(part[2] == "run" || part[2] == "grant" && part[4] == string(KindUse))
}

// RunAll covers every stored fact of every run; also the target of their republication.
func (ns Namespace) RunAll() string { return ns.root() + "run.>" }

// GrantAll covers every stored use of every grant.
func (ns Namespace) GrantAll() string { return ns.root() + "grant.>" }

// UsesOf covers the uses of one grant; it is that chain's filter.
func (ns Namespace) UsesOf(grant string) string { return ns.GrantUse(grant, CallID{}).Chain() }

// EveryMain is a consumer's filter: one kind of fact of the main chain, of every run.
func (ns Namespace) EveryMain(kind Kind) string {
	if kind == KindStep || kind == KindCarry {
		return ns.root() + "run.*.main." + string(kind) + ".*"
	}
	return ns.root() + "run.*.main." + string(kind)
}

// EveryCall is a consumer's filter: one kind of fact of call chains, of every run.
func (ns Namespace) EveryCall(kind Kind) string { return ns.root() + "run.*.call.*." + string(kind) }

// EveryGo is a consumer's filter: releases for one pool.
func (ns Namespace) EveryGo(pool string) string {
	return ns.root() + "run.*.call.*.go." + nameToken(pool) + ".>"
}

// EveryBeside is a consumer's filter: votes, refusals or late outcomes of every run.
func (ns Namespace) EveryBeside(kind Kind) string {
	return ns.root() + "run.*." + string(kind) + ".*.*"
}

// MainOf covers the main chain of one run; it is that chain's filter.
func (ns Namespace) MainOf(run string) string { return ns.below("run", runToken(run), "main.>") }

// VotesOf covers the votes about one call, of every round.
func (ns Namespace) VotesOf(call CallID) string {
	return ns.below("run", runToken(call.Run), string(KindVote)+"."+call.Token()+".*")
}

// CarriesOf covers the carries of one run.
func (ns Namespace) CarriesOf(run string) string {
	return ns.below("run", runToken(run), "main.carry.*")
}

// CallsOf covers all call chains of one run.
func (ns Namespace) CallsOf(run string) string { return ns.below("run", runToken(run), "call.>") }

// AuditTransforms folds the log's subjects into 16, one rule per depth.
func (ns Namespace) AuditTransforms() (from []string, to string) {
	r := ns.root()
	return []string{r + "run.*.*.*", r + "run.*.*.*.*", r + "run.*.*.*.*.*.*", r + "grant.*.*.*"},
		r + "audit.{{partition(16,1)}}"
}

// Audit covers every fact of the record.
func (ns Namespace) Audit() string { return ns.root() + "audit.*" }

// FactOf reports whether the stored subject of a fact, which may be one that nobody should have written, belongs to a run
// or to one below it. A use of a grant belongs to the run of its call.
func (ns Namespace) FactOf(run, subject string) bool {
	if p, err := ParsePlace(subject); err == nil {
		return p.Run == run || strings.HasPrefix(p.Run, run+"=")
	}
	below, ok := strings.CutPrefix(subject, ns.root()+"run."+runToken(run))
	return ok && below != "" && (below[0] == '.' || below[0] == '=')
}

// PoolConsumer is the durable that the executors of a pool share.
func PoolConsumer(pool string) string { return "pool-" + Token(pool) }

// Subjects of the gate's micro service: request and reply, stored nowhere.

// Verbs of the micro service, beside [VerbDecide].
const (
	VerbAsk   = "ask"
	VerbAdmin = "admin"
)

// ServiceSubject is where a principal asks the gate something about a call of a run, "<step>-<i>"; anything else as call
// means the one call that waits.
func (ns Namespace) ServiceSubject(verb, principal, run, call string) string {
	if _, _, ok := parseCallToken(call); !ok {
		call = TokenRun
	}
	return ns.below("svc", verb, nameToken(principal), runToken(run), call)
}

// AdminSubject is where a principal asks the gate for something that people administer.
func (ns Namespace) AdminSubject(principal, verb string) string {
	return ns.below("svc", VerbAdmin, nameToken(principal), Token(verb))
}

// Verbs of what people administer.
const (
	AdminLag  = "lag"  // what consumers have not settled
	AdminDead = "dead" // what was given up
)

// Services covers every request of one verb.
func (ns Namespace) Services(verb string) string {
	if verb == VerbAdmin {
		return ns.root() + "svc." + verb + ".*.*"
	}
	return ns.root() + "svc." + verb + ".*.*.*"
}

// ServiceRequest is the parsed subject of a request to the micro service.
type ServiceRequest struct {
	Verb      string
	Principal string // token; never a reserved one
	Run, Call string // of decide and ask; TokenRun as call means the one call that waits
	Admin     string // token; what is asked for
}

// ParseService reads the subject of a request to the micro service.
func (ns Namespace) ParseService(subject string) (ServiceRequest, error) {
	rest, ok := strings.CutPrefix(subject, ns.root()+"svc.")
	part := strings.Split(rest, ".")
	switch {
	case !ok || len(part) < 2 || !isName(part[1]):
	case len(part) == 3 && part[0] == VerbAdmin && isName(part[2]):
		return ServiceRequest{Verb: part[0], Principal: part[1], Admin: part[2]}, nil
	case len(part) == 4 && (part[0] == VerbDecide || part[0] == VerbAsk) && isRunID(part[2]):
		if _, _, ok := parseCallToken(part[3]); ok || part[3] == TokenRun {
			return ServiceRequest{Verb: part[0], Principal: part[1], Run: part[2], Call: part[3]}, nil
		}
	}
	return ServiceRequest{}, fmt.Errorf("%w: subject %q is not a request's to the gate", ErrBadID, subject)
}

// Inbox is where a decision that came by request is stored, in the name of the same principal.
func (r ServiceRequest) Inbox(ns Namespace) string {
	return ns.below("in.decide", r.Principal, r.Run, r.Call)
}

// isName reports whether s is something that [Token] makes of an id that is there.
func isName(s string) bool {
	return literal(s) || (strings.HasPrefix(s, "=b") || strings.HasPrefix(s, "=h")) && literal(s[1:])
}

// ToolService is where the hosts of a tool are asked something about it ([VerbPreview]).
func (ns Namespace) ToolService(pool, tool, verb string) string {
	return ns.root() + "svc.tool." + nameToken(pool) + "." + Token(tool) + "." + verb
}

// Hook is where observers of a tool's calls are told of an event of their lives.
func (ns Namespace) Hook(tool string, event Observation) string {
	return ns.root() + "hook." + Token(tool) + "." + string(event)
}

// Hooks is the filter of all that observers of a tool's calls are told.
func (ns Namespace) Hooks(tool string) string { return ns.root() + "hook." + Token(tool) + ".*" }

// HookService is where a hook service is asked before calls.
func (ns Namespace) HookService(name string) string { return ns.root() + "svc.hook." + Token(name) }

// HostGroup is the group of the hosts of one version of a tool: one of them answers.
func HostGroup(version string) string { return "v" + Token(version) }

// IsInternal reports whether a subject is one of Weir's or of the server's. Nothing is ever published there because a
// message names it as the subject of its reply.
func IsInternal(subject string) bool {
	return strings.HasPrefix(subject, "weir.") || strings.HasPrefix(subject, "$")
}

// maxForeign bounds the subject of a service of others.
const maxForeign = 255

// CheckForeign refuses what is no subject for requests to services of others: one with wildcards or an empty token, and
// every one on which Weir or the server listens, or may. A tool that spoke there would speak as a service of Weir.
func CheckForeign(subject string) error {
	switch {
	case subject == "" || len(subject) > maxForeign:
		return fmt.Errorf("want a subject of 1 to %d bytes", maxForeign)
	case strings.ContainsFunc(subject, func(r rune) bool { return r <= ' ' || r > '~' || r == '*' || r == '>' }):
		return errors.New("a subject to send to has no wildcards, no spaces and no letters beyond ASCII")
	}
	tokens := strings.Split(subject, ".")
	if slices.Contains(tokens, "") {
		return errors.New("a subject has no empty part between its dots")
	}
	if root := tokens[0]; root == "weir" || root[0] == '$' || root[0] == '_' {
		return errors.New("subjects that begin with weir, $ or _ are those of Weir and of the server; a tool must not speak there")
	}
	return nil
}

// Keys of buckets.

// SuspendedKey is the key of a suspended run's snapshot.
func SuspendedKey(agent, resource, thread, rootRun, run string) string {
	return agentToken(agent) + "." + Token(resource) + "." + Token(thread) + "." + runToken(rootRun) + "." + runToken(run)
}

// TasksKey is the key of what tools keep for a conversation: the task list of the built-in tools, or, with the id of
// another tool, the value of that tool.
func TasksKey(resource, thread, tool string) string {
	key := Token(resource) + "." + Token(thread)
	if tool == "" {
		return key
	}
	return key + "." + Token(tool)
}

// RunOfKey is the run whose snapshot a key of the bucket suspended holds.
func RunOfKey(key string) (string, error) {
	run := key[strings.LastIndexByte(key, '.')+1:]
	if !isRunID(run) {
		return "", fmt.Errorf("%w: key %q names no run", ErrBadID, key)
	}
	return run, nil
}

// SuspendedFilter covers the snapshots of an agent, resource and thread; an empty name covers all.
func SuspendedFilter(agent, resource, thread string) string {
	any := func(s string) string {
		if s == "" {
			return "*"
		}
		return agentToken(s)
	}
	return any(agent) + "." + any(resource) + "." + any(thread) + ".*.*"
}

// Key is the key of a standing approval in the bucket grants: "<scope>.<run or thread>.<tool>.<id>".
func (g Grant) Key() string {
	of := Token(g.ThreadID)
	if g.Terms.Scope == ScopeRun {
		of = runToken(g.RunID)
	}
	return string(join(nil, Token(g.Terms.Scope), of, Token(g.ToolID), Token(g.ID)))
}

// GrantFilter chooses standing approvals by what their keys hold; an empty field takes all.
type GrantFilter struct {
	Scope string // run or thread
	Of    string // the run or thread; with Scope only
	Tool  string
	ID    string
}

// Keys covers the keys of the grants that are chosen.
func (f GrantFilter) Keys() string {
	of := Token
	if f.Scope == ScopeRun {
		of = runToken
	}
	anyOr := func(s string, token func(string) string) string {
		if s == "" {
			return "*"
		}
		return token(s)
	}
	return string(join(nil, anyOr(f.Scope, Token), anyOr(f.Of, of), anyOr(f.Tool, Token), anyOr(f.ID, Token)))
}

// Kinds of entries of the registry.
const (
	RegistryAgent     = "agent"
	RegistryTool      = "tool"
	RegistryDef       = "def"
	RegistryRule      = "rule"
	RegistryModel     = "model"
	RegistryPrincipal = "principal"
	RegistryLive      = "live"
)

// RegistryKey is the key of a named definition.
func RegistryKey(kind, id string) string { return kind + "." + Token(id) }

// RegistryKeyOf is [RegistryKey] for the token of an id, as a parsed subject holds it.
func RegistryKeyOf(kind, token string) string { return kind + "." + token }

// DefKey is the key of a definition by its digest ("sha256:<hex>").
func DefKey(digest string) string {
	return RegistryDef + "." + Token(strings.TrimPrefix(digest, "sha256:"))
}

// LiveKey is the key under which a process shows that it lives.
func LiveKey(service, id string) string { return RegistryLive + "." + Token(service) + "." + Token(id) }
