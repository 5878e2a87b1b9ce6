package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// defaultAdmin is where a process tells whether it lives and is ready.
const defaultAdmin = "127.0.0.1:9464"

func defineAdmin(cmd *cobra.Command, addr *string) {
	cmd.Flags().StringVar(addr, "admin", defaultAdmin, "where /healthz and /readyz are answered; empty: nowhere")
}

// adminGrace is how long requests that are under way may take when the process ends.
const adminGrace = time.Second

var errStarting = errors.New("starting")

// admin answers /healthz and /readyz.
type admin struct {
	listener net.Listener
	server   *http.Server
	worker   atomic.Pointer[worker] // whose readiness it is; none while the process starts
}

// listenAdmin takes the address at once, so that a taken one is an error at the start. Without an address nothing
// listens.
func listenAdmin(ctx context.Context, addr string) (*admin, error) {
	if addr == "" {
		return &admin{}, nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("admin address %s is taken by another program: choose another one with --admin, "+
			`or none with --admin ""`, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("admin address %s: %w", addr, err)
	}
	a, mux := &admin{listener: l}, http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeHealth(w, nil, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		writeHealth(w, a.ready(r.Context()), a.problems())
	})
	a.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	return a, nil
}

func (a *admin) ready(ctx context.Context) error {
	if w := a.worker.Load(); w != nil {
		return w.Ready(ctx)
	}
	return errStarting
}

// problems are what is wrong and hinders nothing.
func (a *admin) problems() []string {
	if w := a.worker.Load(); w != nil {
		return w.Problems()
	}
	return nil
}

// writeHealth says ok and what people should look at, or what is wrong, one line for each finding.
func writeHealth(w http.ResponseWriter, err error, problems []string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err == nil {
		_, _ = io.WriteString(w, "ok\n") // the asker has gone: nobody to tell
		for _, p := range problems {
			_, _ = io.WriteString(w, "warning: "+oneLine(p)+"\n")
		}
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, strings.TrimSpace(err.Error())+"\n")
}

// Addr is where it listens, empty when it does not.
func (a *admin) Addr() string {
	if a.listener == nil {
		return ""
	}
	return a.listener.Addr().String()
}

// Run answers until ctx ends.
func (a *admin) Run(ctx context.Context) error {
	if a.listener == nil {
		<-ctx.Done()
		return nil
	}
	stop := context.AfterFunc(ctx, func() {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), adminGrace)
		defer cancel()
		_ = a.server.Shutdown(bye) // what is still under way is cut off
	})
	defer stop()
	if err := a.server.Serve(a.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin: %w", err)
	}
	return nil
}

// Close gives the address back when Run was never called.
func (a *admin) Close() {
	if a.listener != nil {
		_ = a.listener.Close() // closed already: nothing is left
	}
}
