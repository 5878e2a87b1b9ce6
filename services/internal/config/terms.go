package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirkeeper/weir/events"
)

// termKeys say who decides a held call, how, and what comes if nobody does: a rule that asks has them, no other.
var termKeys = []string{
	"approvers", "notRequester", "signed", "quorum", "decisions", "grants", "expires", "onExpiry", "remind", "escalate",
}

var stageKeys = []string{"after", "to", "onExpiry"}

const (
	maxQuorum = 100
	minRemind = time.Minute
)

// terms reads how a held call is decided.
func (o object) terms(f *File, def *events.Rule) {
	for _, key := range termKeys {
		if o.has(key) && (def.Action == events.RuleAllow || def.Action == events.RuleBlock) {
			o.fail(key, "belongs to rules with action: ask; this one has action: %s", def.Action)
		}
	}
	def.Approvers = o.people("approvers", f)
	def.NotRequester, def.Signed, def.Grants = o.on("notRequester"), o.on("signed"), o.flag("grants")
	def.Quorum = o.countTo("quorum", maxQuorum)
	def.Decisions = o.decisions("decisions")
	def.Expires = events.Duration(o.duration("expires"))
	def.OnExpiry = o.choice("onExpiry", events.OnExpiryDecline, events.OnExpiryFail, events.OnExpiryEscalate)
	def.Remind = events.Duration(o.duration("remind"))
	if d := time.Duration(def.Remind); d > 0 && d < minRemind {
		o.fail("remind", "want %s or more, got %s", span(minRemind), span(d))
	}
	def.Escalate = o.stages("escalate", f)
	o.checkTerms(*def)
}

// checkTerms refuses terms that contradict each other.
func (o object) checkTerms(def events.Rule) {
	if def.OnExpiry == events.OnExpiryEscalate && !o.has("escalate") {
		o.fail("onExpiry", "escalate needs stages: say in escalate after how long who may decide too")
	}
	if def.OnExpiry != events.OnExpiryEscalate && def.Expires > 0 {
		for i, s := range def.Escalate {
			if s.After >= def.Expires {
				at := fmt.Sprintf("escalate.%d", i)
				o.r.fail(o.find(at+".after"), fmt.Sprintf("%s[%d].after", o.sub("escalate"), i),
					"the ask is over after %s (expires), so this stage never begins; shorten it, or say onExpiry: escalate",
					span(time.Duration(def.Expires)))
			}
		}
	}
	if people, all := namedIn(def); all && len(people) > 0 && def.Quorum > len(people) {
		o.fail("quorum", "%d approvals are needed, but only %d may decide: %s", def.Quorum, len(people), strings.Join(people, ", "))
	}
}

// namedIn are the users that a rule lets decide, and whether that is everybody whom it does.
func namedIn(def events.Rule) (people []string, all bool) {
	if len(def.Approvers) == 0 {
		return nil, false
	}
	who := slices.Clone(def.Approvers)
	for _, s := range def.Escalate {
		who = append(who, s.To...)
	}
	slices.Sort(who)
	who = slices.Compact(who)
	return who, !slices.ContainsFunc(who, func(w string) bool { return !strings.HasPrefix(w, userPrefix) })
}

// span is a duration as people write one.
func span(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// decisions reads what people may decide, each once.
func (o object) decisions(key string) []events.Decision {
	words := []string{string(events.Approve), string(events.Decline), string(events.Edit), string(events.Respond)}
	if o.has(key) && len(o.items(key)) == 0 && !o.r.problems.about(o.sub(key)) {
		o.fail(key, "is empty; leave it out for all")
	}
	var list []events.Decision
	for i, word := range o.texts(key) {
		path := fmt.Sprintf("%s[%d]", o.sub(key), i)
		at := o.find(key + "." + itoa(i))
		switch {
		case !slices.Contains(words, word):
			o.r.fail(at, path, "want %s, got %q%s", orList(words), word, suggest(word, words))
		case slices.Contains(list, events.Decision(word)):
			o.r.fail(at, path, "%s is listed twice", word)
		default:
			list = append(list, events.Decision(word))
		}
	}
	return list
}

// stages reads an escalation: after how long who may decide too.
func (o object) stages(key string, f *File) []events.Escalate {
	items := o.items(key)
	if o.has(key) && len(items) == 0 && !o.r.problems.about(o.sub(key)) {
		o.fail(key, "is empty; leave it out, or name a stage")
	}
	var list []events.Escalate
	for i, n := range items {
		s := o.r.object(n, fmt.Sprintf("%s[%d]", o.sub(key), i), stageKeys...)
		s.require("after", "to")
		stage := events.Escalate{
			After: events.Duration(s.duration("after")), To: s.people("to", f),
			OnExpiry: s.choice("onExpiry", events.OnExpiryDecline, events.OnExpiryFail),
		}
		if i > 0 && stage.After > 0 && stage.After <= list[i-1].After {
			s.fail("after", "want more than the %s of the stage before", span(time.Duration(list[i-1].After)))
		}
		list = append(list, stage)
	}
	return list
}

// How approvers begin.
const (
	userPrefix  = "user:"
	groupPrefix = "group:"
)

// people reads a list of users and groups, of whom there must be one: an empty list would let everybody decide.
func (o object) people(key string, f *File) []string {
	items := o.items(key)
	if o.has(key) && len(items) == 0 && !o.r.problems.about(o.sub(key)) {
		o.fail(key, "names nobody")
	}
	var list []string
	for i, n := range items {
		path := fmt.Sprintf("%s[%d]", o.sub(key), i)
		who := o.r.plain(n, path)
		switch {
		case o.r.problems.about(path):
		case !isPerson(who):
			o.r.fail(n, path, "want user:<id> or group:<name>, got %q%s", who, f.suggestPerson(who))
		case slices.Contains(list, who):
			o.r.fail(n, path, "%s is listed twice", who)
		default:
			list = append(list, who)
			if id, user := strings.CutPrefix(who, userPrefix); user {
				f.refer(o.r, n, reference{kind: events.RegistryPrincipal, path: path, name: id})
			}
		}
	}
	return list
}

func isPerson(who string) bool {
	for _, prefix := range []string{userPrefix, groupPrefix} {
		if id, ok := strings.CutPrefix(who, prefix); ok {
			return strings.TrimSpace(id) != ""
		}
	}
	return false
}

// suggestPerson says how somebody is written whom a file knows.
func (f *File) suggestPerson(who string) string {
	groups := map[string]bool{}
	var known []string
	for _, p := range f.Principals {
		known = append(known, userPrefix+p.ID)
		for _, g := range p.Groups {
			groups[g] = true
		}
	}
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		known = append(known, groupPrefix+g)
	}
	_, name, prefixed := strings.Cut(who, ":")
	name = cmp.Or(name, who)
	for _, k := range known {
		if k == userPrefix+name || k == groupPrefix+name {
			return fmt.Sprintf("; did you mean %q?", k)
		}
	}
	if !prefixed && strings.TrimSpace(who) != "" {
		return fmt.Sprintf("; write %q or %q", userPrefix+who, groupPrefix+who)
	}
	return suggest(who, known)
}

// reference is a name that a file uses for something that may be defined elsewhere: a tool of a worker, an agent or a
// principal of the registry.
type reference struct {
	kind    string // events.RegistryTool, RegistryAgent or RegistryPrincipal
	path    string
	name    string // the id, or a rule's pattern
	pattern bool
	place   Problem
}

func (f *File) refer(r *reader, n *yaml.Node, ref reference) {
	ref.place = r.problem(n, ref.path, "")
	f.references = append(f.references, ref)
}
