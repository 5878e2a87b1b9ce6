package gateway

import (
	"cmp"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a page of a list.
const (
	defaultLimit = 50
	maxLimit     = 500
)

// list is a page of one.
type list[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"` // after what the next page begins; none: there is nothing more
}

// place is where something stands in a list, which has it in this order whatever comes and goes.
type place struct {
	at int64
	id string
}

func (p place) compare(other place) int {
	return cmp.Or(cmp.Compare(p.at, other.at), cmp.Compare(p.id, other.id))
}

func (p place) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.at, 10) + " " + p.id))
}

func parsePlace(text string) (p place, ok bool) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return p, false
	}
	at, id, ok := strings.Cut(string(raw), " ")
	if !ok {
		return p, false
	}
	p.id = id
	p.at, err = strconv.ParseInt(at, 10, 64)
	return p, err == nil
}

// paged is the part of all things that a request asks for, in the order of their places.
func paged[T any](r *request, all []T, of func(T) place) (any, error) {
	limit := defaultLimit
	q := r.URL.Query()
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxLimit {
			return nil, badQuery("limit", "want 1 to "+strconv.Itoa(maxLimit))
		}
		limit = n
	}
	slices.SortFunc(all, func(a, b T) int { return of(a).compare(of(b)) })
	if text := q.Get("after"); text != "" {
		after, ok := parsePlace(text)
		if !ok {
			return nil, badQuery("after", "want the next of an earlier page")
		}
		from, _ := slices.BinarySearchFunc(all, after, func(v T, p place) int {
			if of(v).compare(p) <= 0 {
				return -1
			}
			return 1
		})
		all = all[from:]
	}
	page := list[T]{Items: []T{}}
	if len(all) > limit {
		all, page.Next = all[:limit], of(all[limit-1]).String()
	}
	page.Items = append(page.Items, all...)
	return page, nil
}
