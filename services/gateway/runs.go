package gateway

import (
	"strconv"
	"time"

	"github.com/weirkeeper/weir/services/client"
)

// Headers of requests and answers.
const (
	idempotencyKey = "Idempotency-Key"
	runHeader      = "Weir-Run-Id"
	cursorHeader   = "Weir-Cursor"
	abortHeader    = "Weir-Abort-On-Close"
)

// suspendedQuery chooses suspended runs of an agent.
type suspendedQuery struct {
	ThreadID   string `json:"threadId,omitempty"`
	ResourceID string `json:"resourceId,omitempty"`
	FromDate   string `json:"fromDate,omitempty"`
	ToDate     string `json:"toDate,omitempty"`
	PerPage    int    `json:"perPage,omitempty"`
	Page       int    `json:"page,omitempty"`
}

// suspendedRuns lists the runs of an agent that wait for people.
func suspendedRuns(r *request) (any, error) {
	def, err := r.agent()
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	f := client.Filter{Agent: def.ID, Thread: q.Get("threadId"), Resource: q.Get("resourceId")}
	for _, p := range []struct {
		name string
		into *time.Time
	}{{"fromDate", &f.From}, {"toDate", &f.To}} {
		if text := q.Get(p.name); text != "" {
			if *p.into, err = time.Parse(time.RFC3339, text); err != nil {
				return nil, badQuery(p.name, "want a time such as 2026-11-29T22:25:32Z")
			}
		}
	}
	for _, p := range []struct {
		name  string
		least int
		into  *int
	}{{"perPage", 1, &f.PerPage}, {"page", 0, &f.Page}} {
		if text := q.Get(p.name); text != "" {
			if *p.into, err = strconv.Atoi(text); err != nil || *p.into < p.least {
				return nil, badQuery(p.name, "want a number of at least "+strconv.Itoa(p.least))
			}
		}
	}
	return r.who.Suspended(r.Context(), f)
}
