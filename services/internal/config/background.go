package config

import (
	"encoding/json"

	"go.yaml.in/yaml/v3"

	"github.com/weirkeeper/weir/events"
)

var backgroundKeys = []string{"enabled", "defaultDisposition", "timeoutMs", "maxRetries", "retryableErrors", "waitTimeoutMs"}

// background reads how calls of a tool run beside the conversation.
func (o object) background() json.RawMessage {
	if !o.has("background") {
		return nil
	}
	b := o.r.object(o.fields["background"], o.sub("background"), backgroundKeys...)
	b.require("enabled")
	raw, err := events.Marshal(b.asBackground(b.on("enabled")))
	if err != nil || len(o.r.problems) > 0 && o.r.problems.about(b.path) {
		return nil
	}
	return raw
}

// asBackground reads the fields of a background.
func (o object) asBackground(enabled bool) events.Background {
	b := events.Background{
		Enabled: enabled, DefaultDisposition: o.choice("defaultDisposition", events.Deferred, events.Foreground),
		TimeoutMs: o.count("timeoutMs"), MaxRetries: o.countTo("maxRetries", events.MaxBackgroundRetries),
		RetryableErrors: o.texts("retryableErrors"), WaitTimeoutMs: o.count("waitTimeoutMs"),
	}
	switch {
	case o.r.problems.about(o.sub("retryableErrors")):
	case o.has("retryableErrors") && len(b.RetryableErrors) == 0:
		o.fail("retryableErrors", "must not be empty")
	case o.has("maxRetries") && !o.has("retryableErrors"):
		o.fail("maxRetries", "needs retryableErrors: the names of the errors after which a call is tried again")
	}
	return b
}

// backgroundTasks reads which calls of an agent may run in the background.
func (o object) backgroundTasks() *events.BackgroundTasks {
	if !o.has("backgroundTasks") {
		return nil
	}
	t := o.r.object(o.fields["backgroundTasks"], o.sub("backgroundTasks"), "disabled", "tools", "concurrency", "waitTimeoutMs")
	return &events.BackgroundTasks{
		Disabled: t.on("disabled"), Tools: t.backgroundTools(), WaitTimeoutMs: t.count("waitTimeoutMs"),
		Concurrency: t.countTo("concurrency", events.MaxBackground),
	}
}

// backgroundTools reads "all", or by key true, false or how.
func (o object) backgroundTools() events.BackgroundTools {
	if !o.has("tools") {
		return events.BackgroundTools{}
	}
	if n := real(o.fields["tools"]); n.Kind != yaml.MappingNode {
		if n.Kind != yaml.ScalarNode || n.Value != "all" || n.Tag != "!!str" {
			o.fail("tools", "want all, or keys of tools with true, false or how, got %s", kindOf(n))
		}
		return events.BackgroundTools{All: true}
	}
	by := map[string]events.Background{}
	tools := o.r.pairs(o.fields["tools"], o.sub("tools"))
	for _, p := range tools {
		path := join(o.sub("tools"), p.name)
		if real(p.value).Kind == yaml.MappingNode {
			how := o.r.object(p.value, path, backgroundKeys...)
			on := how.flag("enabled")
			by[p.name] = how.asBackground(on == nil || *on)
			continue
		}
		one := object{r: o.r, node: real(o.fields["tools"]), path: o.sub("tools"), fields: map[string]*yaml.Node{p.name: p.value}}
		by[p.name] = events.Background{Enabled: one.on(p.name)}
	}
	return events.BackgroundTools{By: by}
}
