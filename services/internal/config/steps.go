package config

import (
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/models"
)

// objects reads a list of mappings of these keys.
func (o object) objects(key string, keys ...string) []object {
	var list []object
	for i, n := range o.items(key) {
		one := o.r.object(n, fmt.Sprintf("%s[%d]", o.sub(key), i), keys...)
		if one.node.Kind == yaml.MappingNode {
			list = append(list, one)
		}
	}
	return list
}

// stopWhen reads the conditions that end runs of an agent. How their fields go together, [events.CheckStops] says.
func (o object) stopWhen() []events.StopCondition {
	var list []events.StopCondition
	for _, c := range o.objects("stopWhen", "stepCount", "hasToolCall", "maxTokens", "when", "func") {
		list = append(list, events.StopCondition{
			StepCount: c.count("stepCount"), HasToolCall: c.text("hasToolCall"), MaxTokens: c.count("maxTokens"), When: c.expression("when"),
			Func: c.text("func"),
		})
	}
	return list
}

// prepareStep reads what changes for single turns of an agent.
func (o object) prepareStep(known map[string]models.ModelConfig) []events.StepChange {
	var list []events.StepChange
	for _, c := range o.objects("prepareStep", "when", "func", "model", "toolChoice", "activeTools", "instructions") {
		change := events.StepChange{
			When: c.expression("when"), Func: c.text("func"), Model: c.text("model"), ToolChoice: c.text("toolChoice"),
		}
		if c.has("activeTools") {
			active := c.texts("activeTools")
			change.ActiveTools = &active
		}
		if c.has("instructions") {
			told := c.text("instructions")
			change.Instructions = &told
		}
		if change.Model != "" {
			c.checkModel("model", change.Model, known)
		}
		list = append(list, change)
	}
	return list
}

// expression reads an expression of CEL, and refuses one that cannot be compiled.
func (o object) expression(key string) string {
	expr := o.code(key)
	if expr != "" {
		o.compile(key, expr)
	}
	return expr
}
