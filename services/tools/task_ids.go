package tools

import (
	"fmt"
	"strings"
)

// slugLength bounds the part of an id that is made of what a task says.
const slugLength = 48

// withIDs gives an id to each task that has none, and a new one to a task whose id another has taken before it in the
// list. A task without one that says what exactly one previous task said, and is the only one to say it, is that task.
func withIDs(tasks, previous []Task) []Task {
	reserved, saying := map[string]bool{}, map[string]int{}
	for _, t := range tasks {
		if t.ID != "" {
			reserved[t.ID] = true
		} else {
			saying[t.Content]++
		}
	}
	same := map[string]string{} // what tasks say → the one id that this had
	for content, n := range saying {
		if id := only(previous, content, reserved); n == 1 && id != "" {
			same[content] = id
		}
	}
	for _, id := range same {
		reserved[id] = true
	}
	used := map[string]bool{}
	named := make([]Task, len(tasks))
	for i, t := range tasks {
		if t.ID == "" {
			t.ID = same[t.Content]
		}
		if t.ID == "" || used[t.ID] {
			t.ID = free("task_"+slug(t.Content), used, reserved)
		}
		used[t.ID] = true
		named[i] = t
	}
	return named
}

// only is the id of the one task that says this and whose id nobody else claims.
func only(tasks []Task, content string, taken map[string]bool) string {
	id := ""
	for _, t := range tasks {
		if t.Content != content || taken[t.ID] {
			continue
		}
		if id != "" {
			return ""
		}
		id = t.ID
	}
	return id
}

// free is the id, or the first of id_2, id_3 and so on, that no task has or will have.
func free(id string, used, reserved map[string]bool) string {
	try := id
	for n := 2; used[try] || reserved[try]; n++ {
		try = fmt.Sprintf("%s_%d", id, n)
	}
	return try
}

// slug is what a task says, as a part of an id: its letters and digits, in lower case, joined.
func slug(content string) string {
	words := strings.FieldsFunc(strings.ToLower(content), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	text := strings.Join(words, "_")
	if text == "" {
		return "item"
	}
	return strings.TrimRight(text[:min(len(text), slugLength)], "_")
}
