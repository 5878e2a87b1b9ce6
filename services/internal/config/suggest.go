package config

import (
	"fmt"
	"strings"
)

// suggest names the known word that is nearest to one, as the end of a sentence, or nothing when none is near.
func suggest(word string, known []string) string {
	best, least := "", len(word)/3+2
	for _, k := range known {
		d := distance(strings.ToLower(word), strings.ToLower(k))
		if d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// maxCompared bounds the words that are compared: nobody misspells more.
const maxCompared = 64

// distance is how many letters must be inserted, removed, replaced or exchanged with their neighbour to make b of a.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	if len(x) > maxCompared || len(y) > maxCompared {
		return maxCompared
	}
	before, row := make([]int, len(y)+1), make([]int, len(y)+1) // the last row but one, and the last
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(x); i++ {
		next := make([]int, len(y)+1)
		next[0] = i
		for j := 1; j <= len(y); j++ {
			change := 1
			if x[i-1] == y[j-1] {
				change = 0
			}
			next[j] = min(row[j]+1, next[j-1]+1, row[j-1]+change)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row = row, next
	}
	return row[len(y)]
}
