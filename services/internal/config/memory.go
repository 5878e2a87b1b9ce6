package config

import (
	"go.yaml.in/yaml/v3"

	"github.com/weirkeeper/weir/events"
)

// memory reads what an agent's runs recall of their threads: true, false or a mapping.
func (o object) memory() *events.Memory {
	if !o.has("memory") {
		return nil
	}
	if real(o.fields["memory"]).Kind != yaml.MappingNode {
		if !o.on("memory") {
			return nil
		}
		return &events.Memory{}
	}
	m := o.r.object(o.fields["memory"], o.sub("memory"), "lastMessages", "tokens")
	all := &events.Memory{Tokens: m.countTo("tokens", events.MaxMemoryTokens)}
	if m.has("lastMessages") {
		n := m.between("lastMessages", 0, events.MaxLastMessages)
		all.LastMessages = &n
	}
	return all
}
