package events

// DeletionRequested asks that a thread, or all threads of a resource, be deleted (deletion.requested). Deleted is what was
// asked for before: a run that is asked for later begins the thread anew.
type DeletionRequested struct {
	ResourceID string `json:"resourceId,omitempty"`
	ThreadID   string `json:"threadId,omitempty"`
	All        bool   `json:"all,omitempty"` // in place of a thread: all of the resource
	Reason     string `json:"reason,omitempty"`
}

// Of reports whether a thread is one of those that are to be deleted.
func (d DeletionRequested) Of(resource, thread string) bool {
	return thread != "" && d.ResourceID == resource && (d.All || d.ThreadID == thread)
}

// GrantsDropped asks the gate to take back the grants of threads that a planner deletes (grants.dropped).
type GrantsDropped struct {
	EventID  string            `json:"eventId"` // of the request
	Deletion DeletionRequested `json:"deletion"`
}

// ThreadErased says that a thread, or all of a resource, was deleted (thread.erased, in the stream threads). What runs write
// there that were asked for before is deleted too, whenever it comes.
type ThreadErased struct {
	ResourceID string `json:"resourceId,omitempty"`
	ThreadID   string `json:"threadId,omitempty"`
	All        bool   `json:"all,omitempty"`
	By         string `json:"by"`
	EventID    string `json:"eventId"`        // of the request
	InboxSeq   uint64 `json:"inboxSeq"`       // of the request
	Done       bool   `json:"done,omitempty"` // nothing is left, and no run is open
}

// threadToken is a thread in a subject, or what stands there for all.
func threadToken(thread string, all bool) string {
	if all {
		return tokenAll
	}
	return Token(thread)
}

// InThread is where a principal asks that a thread be deleted, or all of a resource.
func (ns Namespace) InThread(principal string, d DeletionRequested) string {
	return ns.root() + "in.thread." + nameToken(principal) + "." + Token(d.ResourceID) + "." + threadToken(d.ThreadID, d.All)
}

// ThreadGone is where the stream says that a thread, or all of a resource, was deleted.
func (ns Namespace) ThreadGone(resource, thread string, all bool) string {
	return ns.root() + "thread." + Token(resource) + "." + threadToken(thread, all) + "." + tokenErased + ".0"
}

// ThreadsIn covers what stands in the threads that are to be deleted.
func (ns Namespace) ThreadsIn(d DeletionRequested) string {
	if d.All {
		return ns.root() + "thread." + Token(d.ResourceID) + ".>"
	}
	return ns.ThreadOf(d.ResourceID, d.ThreadID)
}

// TasksFilters cover the keys of what tools keep for the threads that are to be deleted.
func (d DeletionRequested) TasksFilters() []string {
	if d.All {
		return []string{Token(d.ResourceID) + ".>"}
	}
	key := TasksKey(d.ResourceID, d.ThreadID, "")
	return []string{key, key + ".>"}
}

// NamedBy reports whether a subject of the inbox names what is to be deleted.
func (d DeletionRequested) NamedBy(in Inbox) bool {
	return in.Resource == Token(d.ResourceID) && in.Thread == threadToken(d.ThreadID, d.All)
}
