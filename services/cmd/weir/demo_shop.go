package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"
)

// shopServer is the shop as a server: the world outside, which knows nothing of Weir and counts what is done to it.
type shopServer struct {
	shop
	listener net.Listener
	server   *http.Server
}

// openShop listens on any free port of this machine.
func openShop(ctx context.Context) (*shopServer, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &shopServer{listener: l}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders", func(w http.ResponseWriter, r *http.Request) {
		writeReply(w, s.order(r.URL.Query().Get("orderId")))
	})
	mux.HandleFunc("POST /refunds", func(w http.ResponseWriter, r *http.Request) {
		var in refundOrder
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		writeReply(w, s.refund(in))
	})
	s.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	return s, nil
}

func writeReply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the asker has gone: nobody to tell
}

// Addr is its host:port.
func (s *shopServer) Addr() string { return s.listener.Addr().String() }

// Run answers until ctx ends.
func (s *shopServer) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.server.Close() }) // nothing in it must be finished
	defer stop()
	if err := s.server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
