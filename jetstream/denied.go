package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Violation is something that the user's permissions do not allow.
type Violation struct {
	Operation string // publish or subscribe
	Subject   string
	User      string
	Count     int
	Last      time.Time
}

// maxViolations bounds the table; what comes after that is logged only.
const maxViolations = 256

// denials match permission violations to the operations that they end. The server tells of a violation on the side,
// and the operation itself would wait until its time limit.
type denials struct {
	mu       sync.Mutex
	user     string
	inbox    string // prefix of the subjects on which replies come in
	underWay map[*operation]struct{}
	seen     map[[2]string]*Violation
	replyErr error // set when the user may not receive replies at all
}

type operation struct {
	subject string
	cancel  context.CancelCauseFunc
}

func newDenials() *denials {
	return &denials{underWay: map[*operation]struct{}{}, seen: map[[2]string]*Violation{}}
}

// as says who the user is and where its replies come in.
func (d *denials) as(user, inbox string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.user, d.inbox = user, strings.TrimSuffix(inbox, ".")+"."
}

func (d *denials) begin(subject string, cancel context.CancelCauseFunc) *operation {
	op := &operation{subject, cancel}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.underWay[op] = struct{}{}
	if d.replyErr != nil {
		cancel(d.replyErr)
	}
	return op
}

func (d *denials) end(op *operation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.underWay, op)
}

// add counts a violation and ends the operations on its subject. A user who may not subscribe to its own inbox gets no
// reply to anything, so that ends all.
func (d *denials) add(v Violation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v.User = d.user
	d.count(v)
	err := fmt.Errorf("%w: %s to %s is not allowed to user %s", ErrPermission, v.Operation, v.Subject, v.User)
	noReplies := v.Operation == subscribe && strings.HasPrefix(v.Subject, d.inbox)
	if noReplies {
		err = fmt.Errorf("%w: replies come in on %s, to which user %s may not subscribe: set its inbox prefix",
			ErrPermission, v.Subject, v.User)
		d.replyErr = err
	}
	for op := range d.underWay {
		if noReplies || op.subject == v.Subject {
			op.cancel(err)
		}
	}
}

func (d *denials) count(v Violation) {
	key := [2]string{v.Operation, v.Subject}
	old, ok := d.seen[key]
	switch {
	case ok:
		old.Count++
		old.Last = v.Last
	case len(d.seen) < maxViolations:
		v.Count = 1
		d.seen[key] = &v
	}
}

func (d *denials) replies() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.replyErr
}

func (d *denials) forgive() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.replyErr = nil
}

func (d *denials) list() []Violation {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]Violation, 0, len(d.seen))
	for _, v := range d.seen {
		all = append(all, *v)
	}
	slices.SortFunc(all, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Subject, b.Subject))
	})
	return all
}

// Operations of a violation.
const (
	publish   = "publish"
	subscribe = "subscribe"
)

// violationText is how the server words a violation; a reply subject is refused as part of the publish that names it.
var violationText = regexp.MustCompile(`(?i)permissions violation for (publish|subscription)(?: to| with reply of) "([^"]+)"`)

func parseViolation(err error) (Violation, bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return Violation{}, false
	}
	v := Violation{Operation: publish, Last: time.Now()}
	m := violationText.FindStringSubmatch(err.Error())
	if m == nil {
		v.Subject = err.Error()
		return v, true
	}
	if strings.EqualFold(m[1], "subscription") {
		v.Operation = subscribe
	}
	v.Subject = m[2]
	return v, true
}
