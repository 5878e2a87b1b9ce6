package config

import (
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/rule"
)

func itoa(i int) string { return strconv.Itoa(i) }

var ruleKeys = slices.Concat([]string{"name", "tools", "agents", "when", "action", "reason"}, termKeys)

// readRules reads the section rules: sets by name, each a list in which the first rule that matches counts.
func (o object) readRules(f *File) {
	section := o.r.entries(o.fields["rules"], "rules")
	for _, p := range section {
		set := object{r: o.r, path: "rules", node: p.value, fields: map[string]*yaml.Node{p.name: p.value}}
		out := events.RuleSet{Name: p.name, Rules: []events.Rule{}}
		lines := map[string]int{}
		for i, n := range set.items(p.name) {
			r := o.r.object(n, fmt.Sprintf("rules.%s[%d]", p.name, i), ruleKeys...)
			def := r.rule(f, p.name)
			if line := lines[def.Name]; line > 0 && def.Name != "" {
				r.fail("name", "the name %q is that of the rule in line %d", def.Name, line)
			}
			lines[def.Name] = r.node.Line
			out.Rules = append(out.Rules, def)
		}
		f.Rules = append(f.Rules, out)
	}
}

func (o object) rule(f *File, set string) events.Rule {
	o.require("name", "action")
	action := o.choice("action", string(events.RuleAllow), string(events.RuleAsk), string(events.RuleBlock))
	def := events.Rule{
		Name: o.text("name"), Tools: o.texts("tools"), Agents: o.texts("agents"), When: o.code("when"),
		Action: events.RuleAction(action), Reason: o.text("reason"),
	}
	o.terms(f, &def)
	if o.has("name") && def.Name == "" && !o.r.problems.about(o.sub("name")) {
		o.fail("name", "must not be empty")
	}
	for _, key := range []string{"tools", "agents"} { // an empty list would mean all
		if o.has(key) && len(o.items(key)) == 0 && !o.r.problems.about(o.sub(key)) {
			o.fail(key, "is empty; leave it out for all")
		}
	}
	for i, pattern := range def.Tools {
		if err := rule.CheckToolPattern(pattern); err != nil {
			o.r.fail(o.find("tools."+itoa(i)), o.sub("tools")+"["+itoa(i)+"]", "%v", err)
		}
	}
	if def.When != "" {
		o.compile("when", def.When)
	}
	if o.r.problems.about(o.path) {
		return def
	}
	one := rule.Set{Name: set, Rules: []rule.Rule{{
		Name: def.Name, Tools: def.Tools, Agents: def.Agents, When: def.When, Action: rule.Action(def.Action),
	}}}
	if err := one.Check(); err != nil {
		o.r.fail(o.node, o.path, "%v", err)
	}
	o.matches(f, "tools", events.RegistryTool, def.Tools)
	o.matches(f, "agents", events.RegistryAgent, def.Agents)
	return def
}

// matches notes patterns that must match something.
func (o object) matches(f *File, key, kind string, patterns []string) {
	for i, pattern := range patterns {
		f.refer(o.r, o.find(key+"."+itoa(i)), reference{
			kind: kind, path: o.sub(key) + "[" + itoa(i) + "]", name: pattern, pattern: true,
		})
	}
}

var principalKeys = []string{"auth", "key", "groups", "scopes"}

// readPrincipals reads the section principals.
func (o object) readPrincipals(f *File) {
	for _, p := range o.r.entries(o.fields["principals"], "principals") {
		who := o.r.object(p.value, join("principals", p.name), principalKeys...)
		who.require("auth")
		def := events.PrincipalDef{
			ID: p.name, Auth: who.choice("auth", "key", "gateway", "subject"), Key: who.text("key"), Groups: who.texts("groups"),
			Scopes: who.texts("scopes"),
		}
		who.checkScopes(def.Scopes)
		switch {
		case def.Auth == "key" && !who.has("key"):
			who.fail("key", "is missing: decisions of this principal are verified by it")
		case def.Auth != "" && def.Auth != "key" && who.has("key"):
			who.fail("key", "is used with auth: key only")
		case who.has("key") && !who.r.problems.about(who.sub("key")):
			if err := checkKey(def.Key); err != nil {
				who.fail("key", "%v", err)
			}
		}
		f.Principals = append(f.Principals, def)
	}
}

// checkScopes wants scopes that there are. An empty list would be none, or all that go without saying: nobody could tell.
func (o object) checkScopes(scopes []string) {
	if scopes != nil && len(scopes) == 0 && !o.r.problems.about(o.sub("scopes")) {
		o.fail("scopes", "is empty: leave it out, or name some of %s", strings.Join(events.PrincipalScopes(), ", "))
	}
	for i, scope := range scopes {
		if !slices.Contains(events.PrincipalScopes(), scope) {
			at := "scopes[" + itoa(i) + "]"
			o.r.fail(o.find(at), o.sub(at), "is %q; use %s", scope, strings.Join(events.PrincipalScopes(), ", "))
		}
	}
}

var (
	keyForm     = regexp.MustCompile(`^U[A-Z2-7]{55}$`)
	keyEncoding = base32.StdEncoding.WithPadding(base32.NoPadding)
)

// checkKey checks the form and the checksum of a public key of a user, so that a slip is found before a decision fails.
func checkKey(key string) error {
	if !keyForm.MatchString(key) {
		return errors.New("want a public key, U and 55 letters and digits; a seed (SU…) stays with its owner")
	}
	raw, err := keyEncoding.DecodeString(key)
	if err != nil || len(raw) != 35 || crc16(raw[:33]) != binary.LittleEndian.Uint16(raw[33:]) {
		return errors.New("not a public key: its checksum is wrong")
	}
	return nil
}

// crc16 is the checksum of keys in text form (XMODEM).
func crc16(data []byte) (crc uint16) {
	const polynomial = 0x1021
	for _, b := range data {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= polynomial
			}
		}
	}
	return crc
}
