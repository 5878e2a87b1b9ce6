package events

import (
	"slices"
	"strings"
)

// Approver is somebody who looks for what to decide: a principal, and the groups that it is known to be in.
type Approver struct {
	ID     string
	Groups []string
	Barred bool // its scopes lack decide
}

// May reports whether the approver may still decide an ask of a run that requester, the token of a principal, asked for.
// It is what lists are made by. What counts is the gate's own judgement: groups may have changed since, or be known to a
// gateway only.
func (p Approver) May(a OpenAsk, requester string) bool {
	isRequester := p.ID == requester || Token(p.ID) == requester
	switch {
	case p.Barred, len(a.Allowed) == 0, a.Kind == AskWait: // the gate answers it itself
		return false
	case a.Kind == AskClient && !isRequester, a.NotRequester && isRequester, p.voted(a):
		return false
	}
	return len(a.Approvers) == 0 || slices.ContainsFunc(a.Approvers, p.Is)
}

// Is reports whether the approver is who a name in a rule means: user:<id> or group:<id>.
func (p Approver) Is(name string) bool {
	kind, id, _ := strings.Cut(name, ":")
	switch kind {
	case "user":
		return id == p.ID
	case "group":
		return slices.Contains(p.Groups, id)
	}
	return false
}

func (p Approver) voted(a OpenAsk) bool {
	return a.Quorum != nil && slices.ContainsFunc(a.Quorum.Votes, func(v VoteBrief) bool { return v.Principal == p.ID })
}
