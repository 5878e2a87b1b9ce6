package toolsearch

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Answer is what a call of search_tools or load_tool gives, and the keys of the tools that it loads.
type Answer struct {
	Result json.RawMessage
	Loads  []string
}

// Found is a tool that a search finds.
type Found struct {
	Name        string  `json:"name"`
	Description string  `json:"description"`
	Score       float64 `json:"score"`
}

type searched struct {
	Results []Found `json:"results"`
	Message string  `json:"message"`
}

type loadedOne struct {
	Success   bool     `json:"success"`
	Message   string   `json:"message"`
	ToolName  string   `json:"toolName,omitempty"`
	ToolNames []string `json:"toolNames,omitempty"`
}

// Answer answers a call whose arguments are valid.
func (c *Catalog) Answer(ctx context.Context, key string, args json.RawMessage, loaded []string) (Answer, error) {
	var in struct {
		Query     string   `json:"query"`
		ToolName  string   `json:"toolName"`
		ToolNames []string `json:"toolNames"`
	}
	if err := json.Unmarshal(args, &in); err != nil {
		return Answer{}, err
	}
	var out any
	var loads []string
	if key == events.ToolSearchTools {
		out, loads = c.search(ctx, in.Query)
	} else {
		names := in.ToolNames
		if in.ToolName != "" {
			names = append([]string{in.ToolName}, names...)
		}
		out, loads = c.load(ctx, names, loaded)
	}
	raw, err := events.Marshal(out)
	return Answer{Result: raw, Loads: loads}, err
}

// search finds the tools whose names and descriptions have the words of a query, the best first.
func (c *Catalog) search(ctx context.Context, query string) (searched, []string) {
	ranked := c.rank(ctx, query)
	out := searched{Results: []Found{}}
	var keys []string
	for _, r := range ranked[:min(len(ranked), cmp.Or(c.conf.TopK, events.DefaultTopK))] {
		out.Results = append(out.Results, Found{agent.SafeName(r.key), brief(c.tools[r.key].Description), r.score})
		keys = append(keys, r.key)
	}
	switch n := len(keys); {
	case n == 0:
		out.Message = fmt.Sprintf("No tools found matching %q. Try different keywords.", brief(query))
	case c.conf.AutoLoad:
		out.Message = fmt.Sprintf("Found %d tool(s). They are loaded: call them from your next turn on.", n)
		return out, keys
	default:
		out.Message = fmt.Sprintf("Found %d tool(s). Call %s with the exact name to be able to use one.", n, events.ToolLoadTool)
	}
	return out, nil
}

// load loads tools by name, all of them or none.
func (c *Catalog) load(ctx context.Context, names, loaded []string) (loadedOne, []string) {
	visible := c.visible(ctx)
	byName := map[string]string{}
	for _, key := range visible {
		byName[agent.SafeName(key)], byName[key] = key, key
	}
	out := loadedOne{ToolNames: names}
	if len(names) == 1 {
		out.ToolName, out.ToolNames = names[0], nil
	}
	var keys, fresh, missing []string
	for _, name := range names {
		key, there := byName[name]
		if !there {
			missing = append(missing, name)
			continue
		}
		keys = append(keys, key)
		if !slices.Contains(loaded, key) {
			fresh = append(fresh, key)
		}
	}
	switch {
	case len(names) == 0:
		out.Message = "Say which tool: give toolName, or toolNames for several."
	case len(missing) > 0:
		out.Message = c.unknown(missing, visible)
	case len(fresh) == 0:
		out.Success, out.Message = true, fmt.Sprintf("Already loaded: %s.", strings.Join(names, ", "))
	default:
		out.Success, out.Message = true, fmt.Sprintf("Loaded: %s. Call it from your next turn on.", strings.Join(names, ", "))
		return out, keys
	}
	return out, nil
}

// unknown says that there are no such tools, and which have names that are near.
func (c *Catalog) unknown(missing, visible []string) string {
	var parts []string
	for _, name := range missing[:min(len(missing), events.DefaultTopK)] {
		text := fmt.Sprintf("Tool %q not found.", brief(name))
		if near := nearest(name, visible); len(near) > 0 {
			text += " Did you mean: " + strings.Join(near, ", ") + "?"
		}
		parts = append(parts, text)
	}
	return strings.Join(append(parts, "Nothing was loaded. Use "+events.ToolSearchTools+" to find tools."), " ")
}

// maxWords bounds the words of a query that count: a model may write any number.
const maxWords = 64

type ranking struct {
	key   string
	score float64
}

// A word of a query counts for a tool as often as it is rare among all tools; in the name it counts more than in the
// description, and the beginning of a word counts half.
const (
	nameWeight = 3.0
	textWeight = 1.0
	partWeight = 0.5
)

func (c *Catalog) rank(ctx context.Context, query string) []ranking {
	type entry struct {
		key        string
		name, text []string
	}
	var all []entry
	for _, key := range c.visible(ctx) {
		m := c.tools[key]
		all = append(all, entry{key, append(words(key), words(m.Title)...), words(m.Description)})
	}
	scores := make([]float64, len(all))
	asked := words(query)
	slices.Sort(asked)
	asked = slices.Compact(asked)
	for _, word := range asked[:min(len(asked), maxWords)] {
		weights, having := make([]float64, len(all)), 0
		for i, e := range all {
			if weights[i] = max(nameWeight*has(e.name, word), textWeight*has(e.text, word)); weights[i] > 0 {
				having++
			}
		}
		rarity := math.Log(1 + (float64(len(all)-having)+0.5)/(float64(having)+0.5))
		for i, w := range weights {
			scores[i] += w * rarity
		}
	}
	var found []ranking
	for i, e := range all {
		if score := math.Round(scores[i]*100) / 100; scores[i] > 0 && score >= c.conf.MinScore {
			found = append(found, ranking{e.key, max(score, 0.01)})
		}
	}
	slices.SortFunc(found, func(a, b ranking) int { return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.key, b.key)) })
	return found
}

// has reports how much of a word there is among others: all of it, its beginning or that of one of them, or nothing.
func has(list []string, word string) float64 {
	part := 0.0
	for _, w := range list {
		if w == word {
			return 1
		}
		if min(len(w), len(word)) >= minPart && (strings.HasPrefix(w, word) || strings.HasPrefix(word, w)) {
			part = partWeight
		}
	}
	return part
}

// minPart is how long the beginning of a word must be to count.
const minPart = 3

// words are those of a name or text, in small letters: getUserID and get_user_id have the same. A final s is left out, so
// that refunds are found as a refund.
func words(text string) []string {
	var out []string
	for _, field := range strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		for _, w := range parts(field) {
			w = strings.ToLower(w)
			if len(w) > minPart && strings.HasSuffix(w, "s") && !strings.HasSuffix(w, "ss") {
				w = w[:len(w)-1]
			}
			if !slices.Contains(commonWords, w) {
				out = append(out, w)
			}
		}
	}
	return out
}

// commonWords say nothing about a tool.
var commonWords = []string{"a", "an", "and", "by", "for", "from", "in", "of", "on", "or", "the", "to", "tool", "with"}

// parts splits a name such as getUserID where a capital letter begins a word.
func parts(field string) []string {
	var out []string
	runes, from := []rune(field), 0
	for i := 1; i < len(runes); i++ {
		begins := unicode.IsUpper(runes[i]) && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if begins {
			out, from = append(out, string(runes[from:i])), i
		}
	}
	return append(out, string(runes[from:]))
}

// maxNear is how many names are told that are near one that is unknown.
const maxNear = 3

// nearest are names that have a word of an unknown one, or differ from it by little.
func nearest(name string, keys []string) []string {
	var found []ranking
	for _, key := range keys {
		score := 0.0
		for _, w := range words(name) {
			score += has(words(key), w)
		}
		if d := distance(strings.ToLower(name), strings.ToLower(key)); d <= max(1, len(name)/3) {
			score += float64(len(name)-d) / float64(len(name)+1)
		}
		if score > 0 {
			found = append(found, ranking{agent.SafeName(key), score})
		}
	}
	slices.SortFunc(found, func(a, b ranking) int { return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.key, b.key)) })
	var names []string
	for _, r := range found[:min(len(found), maxNear)] {
		names = append(names, r.key)
	}
	return names
}

// distance is how many bytes have to be put in, left out or changed to make one name of the other.
func distance(a, b string) int {
	if len(a) > maxCompared || len(b) > maxCompared {
		return maxCompared
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := diagonal
			if a[i-1] != b[j-1] {
				change++
			}
			diagonal, row[j] = row[j], min(change, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

// maxCompared bounds the names that are compared: a model may write any.
const maxCompared = 128

// brief is a description as lists show it.
func brief(text string) string {
	const most = 150
	text = strings.Join(strings.Fields(text), " ")
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most-1]) + "…"
}
