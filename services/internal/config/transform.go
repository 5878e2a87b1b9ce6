package config

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/jq"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// formKeys are the phases of calls that a transform may have forms for.
var formKeys = []string{"input", "inputDelta", "output", "error", "approval", "suspend", "resume"}

// program reads what is made by a jq program, which may use some values by name. A function can be had in Go only.
func (o object) program(key string, names ...string) *events.Form {
	if !o.has(key) {
		return nil
	}
	p := o.r.object(o.fields[key], o.sub(key), "jq")
	p.require("jq")
	form := events.Form{JQ: p.code("jq")}
	if o.r.problems.about(p.path) || o.r.problems.about(p.sub("jq")) {
		return nil
	}
	if _, err := jq.Compile(form.JQ, names...); err != nil {
		p.fail("jq", "%v", err)
		return nil
	}
	return &form
}

// toModelOutput reads what a model is told in place of results.
func (o object) toModelOutput() json.RawMessage {
	return encoded(o.program("toModelOutput"), o.has("toModelOutput"))
}

// encoded is a value as a manifest holds it; nil when it is not there.
func encoded(v any, there bool) json.RawMessage {
	if !there {
		return nil
	}
	raw, _ := events.Marshal(v) // texts always encode
	return raw
}

// transform reads what may be shown of a tool's calls.
func (o object) transform() json.RawMessage {
	if !o.has("transform") {
		return nil
	}
	t := o.r.object(o.fields["transform"], o.sub("transform"), string(events.TargetDisplay), string(events.TargetTranscript))
	forms := events.Transform{Display: t.forms("display"), Transcript: t.forms("transcript")}
	if forms.Display == nil && forms.Transcript == nil && !o.r.problems.about(t.path) {
		o.fail("transform", "covers neither display nor transcript")
	}
	return encoded(forms, true)
}

// forms reads the forms of a target. An empty mapping covers it too, and shows nothing.
func (o object) forms(key string) *events.Forms {
	if !o.has(key) {
		return nil
	}
	return o.r.object(o.fields[key], o.sub(key), formKeys...).theForms()
}

func (o object) theForms() *events.Forms {
	form := func(key string) *events.Form { return o.program(key, "call") }
	return &events.Forms{
		Input: form("input"), InputDelta: form("inputDelta"), Output: form("output"), Error: form("error"),
		Approval: form("approval"), Suspend: form("suspend"), Resume: form("resume"),
	}
}

// policy reads what may be shown of the calls of many tools.
func (o object) policy(f *File) *events.TransformPolicy {
	if !o.has("transform") {
		return nil
	}
	p := o.r.object(o.fields["transform"], o.sub("transform"), "rules", "targets")
	p.require("rules")
	policy := &events.TransformPolicy{Rules: []events.TransformRule{}}
	for i, target := range p.texts("targets") {
		if !slices.Contains(events.Targets(), events.Target(target)) {
			at := fmt.Sprintf("targets[%d]", i)
			p.r.fail(p.find("targets."+itoa(i)), p.sub(at), "is %q; use display or transcript", target)
		}
		policy.Targets = append(policy.Targets, events.Target(target))
	}
	if p.has("targets") && len(policy.Targets) == 0 && !p.r.problems.about(p.sub("targets")) {
		p.fail("targets", "is empty; leave it out for both")
	}
	for i, n := range p.items("rules") {
		r := p.r.object(n, fmt.Sprintf("%s[%d]", p.sub("rules"), i), append([]string{"tools"}, formKeys...)...)
		tools := r.texts("tools")
		if r.has("tools") && len(tools) == 0 && !r.r.problems.about(r.sub("tools")) {
			r.fail("tools", "is empty; leave it out for all")
		}
		for k, pattern := range tools {
			if err := rule.CheckToolPattern(pattern); err != nil {
				r.r.fail(r.find("tools."+itoa(k)), r.sub("tools")+"["+itoa(k)+"]", "%v", err)
			}
		}
		r.matches(f, "tools", events.RegistryTool, tools)
		policy.Rules = append(policy.Rules, events.TransformRule{Tools: tools, Forms: *r.theForms()})
	}
	return policy
}
