package gateway

import (
	"io"
	"net/http"
)

// health says that the process lives and is connected.
func health(r *request) error {
	r.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err := r.g.conn.Health(); err != nil {
		r.g.log.WarnContext(r.Context(), "not healthy", "error", err)
		r.w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(r.w, "the bus does not answer\n") // the asker has gone: nobody to tell
		return nil
	}
	_, _ = io.WriteString(r.w, "ok\n") // the asker has gone: nobody to tell
	return nil
}
