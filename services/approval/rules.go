package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/judge"
)

const (
	// matchAge is how long rules count as matched against tools and agents, which come and go.
	matchAge = 30 * time.Second
	// maxProblems bounds what a gate tells of its rules.
	maxProblems = 20
)

// ruleBook holds the operators' rule sets as they were last read, and what is wrong with them.
type ruleBook struct {
	mu   sync.Mutex
	view *judge.Rules
	read time.Time

	problems []string
	told     string // what was logged last: the rules, and what is wrong with them
	digest   string // of the rules that were matched last, and when
	matched  time.Time
}

func (b *ruleBook) fresh() *judge.Rules {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.view == nil || time.Since(b.read) > judge.MaxAge {
		return nil
	}
	return b.view
}

func (b *ruleBook) keep(v *judge.Rules, read time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.view, b.read = v, read
}

// forget lets the next call read the rules again.
func (b *ruleBook) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.view = nil
}

// hearRules waits for changes of the rules until ctx ends. Without the right to hear them, they are judge.MaxAge old.
func (s *Service) hearRules(ctx context.Context) error {
	stop, err := s.conn.HearNamed(ctx, events.RegistryRule, s.rules.forget)
	if err != nil {
		s.log.WarnContext(ctx, "changes of rules are not heard", "error", err)
		return nil
	}
	<-ctx.Done()
	stop()
	return nil
}

// rulesNow are the rule sets in force and their digest. An error means that nothing may be let through.
func (s *Service) rulesNow(ctx context.Context) (*judge.Rules, error) {
	if v := s.rules.fresh(); v != nil {
		return v, nil
	}
	read := time.Now()
	named, err := s.conn.ListNamed(ctx, events.RegistryRule)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	v, err := judge.Read(named)
	if err != nil {
		return nil, err // nothing passes until somebody applies rules that can be read
	}
	s.rules.keep(v, read)
	return v, nil
}

// Ready is nil when the rules can be used. Without them nothing passes.
func (s *Service) Ready(ctx context.Context) error {
	if _, err := s.rulesNow(ctx); err != nil {
		return unusable(err)
	}
	return nil
}

func unusable(err error) error {
	return fmt.Errorf("the rules cannot be used, so nothing passes: %w", err)
}

// Problems are what is wrong with the rules in force as this gate last saw it: rules that match nothing, or that cannot be
// read. The live entry of the gate tells them too.
func (s *Service) Problems() []string {
	s.rules.mu.Lock()
	defer s.rules.mu.Unlock()
	return slices.Clone(s.rules.problems)
}

// live is what the gate says about itself while it lives.
func (s *Service) live(ctx context.Context, since time.Time) events.Live {
	s.checkRules(ctx)
	return events.Live{Service: Name, ID: s.cfg.ID, Since: since, Problems: s.Problems()}
}

// checkRules looks for what is wrong with the rules in force, and logs it when the rules or it have changed. It judges no
// call, and what it cannot read now it finds out the next time.
func (s *Service) checkRules(ctx context.Context) {
	rules, err := s.rulesNow(ctx)
	switch {
	case errors.Is(err, judge.ErrUnreadable):
		s.tellProblems(ctx, "", []string{unusable(err).Error()})
		return
	case err != nil || !s.rules.due(rules.Digest()):
		return
	}
	found, err := s.unmatched(ctx, rules)
	if err != nil {
		s.log.DebugContext(ctx, "rules not compared with tools and agents", "error", err)
		return
	}
	s.tellProblems(ctx, rules.Digest(), found)
}

// due reports whether rules must be matched again: they are others, or some time has passed.
func (b *ruleBook) due(digest string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.digest != digest || time.Since(b.matched) >= matchAge
}

// unmatched are the rules that match no registered tool or agent.
func (s *Service) unmatched(ctx context.Context, rules *judge.Rules) (list []string, err error) {
	var sets []events.RuleSet
	for _, set := range rules.Sets() {
		sets = append(sets, set.RuleSet)
	}
	if len(sets) == 0 {
		return nil, nil
	}
	tools, err := readAll[events.Manifest](ctx, s, events.RegistryTool)
	if err != nil {
		return nil, err
	}
	agents, err := readAll[events.AgentDef](ctx, s, events.RegistryAgent)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(agents))
	for i, a := range agents {
		ids[i] = a.ID
	}
	for _, p := range judge.Unmatched(sets, tools, ids) {
		list = append(list, p.String())
	}
	if more := len(list) - maxProblems; more > 0 {
		list = append(list[:maxProblems], fmt.Sprintf("and %d more", more))
	}
	return list, nil
}

// readAll reads all definitions of a kind. One that cannot be read is none.
func readAll[T any](ctx context.Context, s *Service, kind string) ([]T, error) {
	named, err := s.conn.ListNamed(ctx, kind)
	if err != nil {
		return nil, err
	}
	all := make([]T, 0, len(named))
	for _, token := range slices.Sorted(maps.Keys(named)) {
		var v T
		if json.Unmarshal(named[token], &v) == nil {
			all = append(all, v)
		}
	}
	return all, nil
}

// tellProblems keeps what is wrong, and logs it once for each version of the rules.
func (s *Service) tellProblems(ctx context.Context, digest string, found []string) {
	text := digest + " " + strings.Join(found, "\n")
	b := &s.rules
	b.mu.Lock()
	told, before := b.told == text, len(b.problems)
	b.told, b.problems, b.digest, b.matched = text, found, digest, time.Now()
	b.mu.Unlock()
	if told {
		return
	}
	for _, p := range found {
		s.log.ErrorContext(ctx, "a rule is without effect", "rules", digest, "problem", p)
	}
	if len(found) == 0 && before > 0 {
		s.log.WarnContext(ctx, "every rule has its effect again", "rules", digest)
	}
}
