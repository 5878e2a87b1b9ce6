package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
)

// localOptions say where a NATS server of this process keeps its files and what its streams are like.
type localOptions struct {
	// Dir holds the streams and the gate's key.
	Dir string
	// Listen is the host:port for other processes. Empty: there are none.
	Listen string
	// Sync says when appends reach the disk.
	Sync embedded.Sync
	// Namespace of the streams. Empty: the default.
	Namespace events.Namespace
	// Settings of the streams.
	Settings jetstream.Settings
	Log      *slog.Logger
	Trace    jetstream.Tracer // nil: nothing is traced
}

// local is a provisioned NATS server in this process, and the key of its gate.
type local struct {
	opts   localOptions
	server *embedded.Server
	key    events.Key
}

// startLocal starts a server on a directory, makes its streams, and the gate's key when there is none yet.
func startLocal(ctx context.Context, o localOptions) (*local, error) {
	key, err := gateKey(filepath.Join(o.Dir, "keys", "gate.nk"))
	if err != nil {
		return nil, err
	}
	server, err := embedded.Start(ctx, embedded.Options{
		Dir: filepath.Join(o.Dir, "nats"), Sync: o.Sync,
		Listen: o.Listen, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	l := &local{opts: o, server: server, key: key}
	if err := l.provision(ctx); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// gateKey loads the gate's key, or makes one that only the owner of the directory may read.
func gateKey(path string) (events.Key, error) {
	key, err := jetstream.LoadKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return events.Key{}, fmt.Errorf("make the gate's key: %w", err)
	}
	if key, err = jetstream.NewKey(); err != nil {
		return events.Key{}, err
	}
	return key, jetstream.SaveKey(path, key)
}

func (l *local) provision(ctx context.Context) error {
	conn, err := l.dial(ctx, "provision")
	if err != nil {
		return err
	}
	defer hangUp(conn)
	settings := l.opts.Settings
	settings.AsyncChunks = l.opts.Sync == embedded.SyncAlways
	return conn.Ensure(ctx, settings)
}

// dial connects to the server without a socket.
func (l *local) dial(ctx context.Context, name string) (*jetstream.Conn, error) {
	return jetstream.Connect(ctx, jetstream.Options{
		InProcess: l.server.InProcess(), Name: name,
		Namespace: l.opts.Namespace, Log: l.opts.Log, Trace: l.opts.Trace,
	})
}

// gateKeys are the public keys that executors of this server accept.
func (l *local) gateKeys() (events.Keys, error) { return publicKeys(l.key.Public) }

// publicKeys reads public keys in their text form ("U…").
func publicKeys(texts ...string) (events.Keys, error) {
	keys := events.Keys{}
	for _, text := range texts {
		public, err := jetstream.ParsePublic(text)
		if err != nil {
			return nil, err
		}
		keys[text] = public
	}
	return keys, nil
}

// Close stops the server. Connections to it are closed before.
func (l *local) Close() { l.server.Shutdown() }

// hangUp closes a connection, which bounds itself and never fails.
//
//nolint:contextcheck,nolintlint // also when the context of a command has ended
func hangUp(conn *jetstream.Conn) { _ = conn.Close() }
