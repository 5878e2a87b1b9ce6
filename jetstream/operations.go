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

// operations are what is under way. Some would wait until their time limit in vain and are ended here: those that a
// permission violation concerns, of which the server tells on the side, and all when the connection is lost, because
// their replies are lost with it.
type operations struct {
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

func newOperations() *operations {
	return &operations{underWay: map[*operation]struct{}{}, seen: map[[2]string]*Violation{}}
}

// as says who the user is and where its replies come in.
func (o *operations) as(user, inbox string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.user, o.inbox = user, strings.TrimSuffix(inbox, ".")+"."
}

func (o *operations) begin(subject string, cancel context.CancelCauseFunc) *operation {
	op := &operation{subject, cancel}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.underWay[op] = struct{}{}
	if o.replyErr != nil {
		cancel(o.replyErr)
	}
	return op
}

func (o *operations) end(op *operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.underWay, op)
}

// add counts a violation and ends the operations on its subject. A user who may not subscribe to its own inbox gets no
// reply to anything, so that ends all.
func (o *operations) add(v Violation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	v.User = o.user
	o.count(v)
	err := fmt.Errorf("%w: %s to %s is not allowed to user %s", ErrPermission, v.Operation, v.Subject, v.User)
	noReplies := v.Operation == subscribe && strings.HasPrefix(v.Subject, o.inbox)
	if noReplies {
		err = fmt.Errorf("%w: replies come in on %s, to which user %s may not subscribe: set its inbox prefix",
			ErrPermission, v.Subject, v.User)
		o.replyErr = err
	}
	for op := range o.underWay {
		if noReplies || op.subject == v.Subject {
			op.cancel(err)
		}
	}
}

func (o *operations) count(v Violation) {
	key := [2]string{v.Operation, v.Subject}
	old, ok := o.seen[key]
	switch {
	case ok:
		old.Count++
		old.Last = v.Last
	case len(o.seen) < maxViolations:
		v.Count = 1
		o.seen[key] = &v
	}
}

// cut ends all operations because the connection is lost.
func (o *operations) cut(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for op := range o.underWay {
		op.cancel(err)
	}
}

// inboxPrefix is where replies come in, with the dot at its end.
func (o *operations) inboxPrefix() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.inbox
}

func (o *operations) replies() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.replyErr
}

func (o *operations) forgive() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.replyErr = nil
}

func (o *operations) list() []Violation {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make([]Violation, 0, len(o.seen))
	for _, v := range o.seen {
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
