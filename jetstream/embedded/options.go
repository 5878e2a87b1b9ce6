package embedded

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

const defaultName = "weir"

// randomPort is how nats-server spells "any free port"; its 0 means 4222.
const randomPort = -1

// Options describe one server. Only Dir is needed.
type Options struct {
	// Dir holds the streams. It is made when it is missing and belongs to one server at a time.
	Dir string
	// Sync says when appends reach the disk. Zero is SyncDefault.
	Sync Sync
	// Listen is the host:port for clients; port 0 is any free one. Empty means in process only. Without a
	// configuration file nobody needs a password, so only loopback addresses are accepted.
	Listen string
	// MaxStore bounds the streams on disk, in bytes. Zero leaves it to the server: 75 % of the free space.
	MaxStore int64
	// Name is what clients see and what cluster members know each other by. Empty is "weir".
	Name string
	// Cluster makes the server a member of a cluster on this machine. Nil is a single server.
	Cluster *ClusterOptions
	// Log takes the server's own log: its errors and warnings at their level, everything else at debug and
	// below. Nil discards it.
	Log *slog.Logger
}

// ClusterOptions describe a member of a test cluster. Routes need no password, so they stay on the loopback
// address; a production cluster is made of nats-server processes.
type ClusterOptions struct {
	// Name is the same on all members.
	Name string
	// Port of 127.0.0.1 takes routes of the other members.
	Port int
	// Routes are the host:port of all members, this one included: their number is the cluster's size.
	Routes []string
}

// withDefaults fills what no configuration file can say.
func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// validate refuses what the server would accept silently or report as a time-out. Of a server with a
// configuration file, the file decides who may connect, so any address is good.
func (o Options) validate(hasConfig bool) error {
	if o.Sync != SyncAlways && o.Sync != SyncDefault && o.Sync < SyncInterval(minSyncInterval) {
		return fmt.Errorf("sync interval %v is below %v: choose a longer one, or sync always",
			time.Duration(o.Sync), minSyncInterval)
	}
	if o.MaxStore < 0 {
		return fmt.Errorf("store limit %d is negative: use bytes, or 0 for the server's own limit", o.MaxStore)
	}
	if o.Cluster != nil {
		if err := o.Cluster.validate(); err != nil {
			return err
		}
		if o.Listen == "" {
			return errors.New("a cluster member must listen for clients: the server opens routes after that")
		}
	}
	if o.Listen == "" || hasConfig {
		return nil
	}
	return checkLoopback(o.Listen)
}

func (c *ClusterOptions) validate() error {
	switch {
	case c.Name == "":
		return errors.New("cluster without a name: give all members the same one")
	case c.Port <= 0:
		return fmt.Errorf("cluster port %d: members must know each other's ports beforehand", c.Port)
	case len(c.Routes) == 0:
		return errors.New("cluster without routes: name the host:port of every member")
	}
	return nil
}

func checkLoopback(listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("listen address %q is not host:port: %w", listen, err)
	}
	if host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("listen address %q can be reached from other machines, and no password is asked: "+
		"use 127.0.0.1, or a NATS configuration file with users", listen)
}

// natsOptions translates for nats-server. The options are built anew for every start, because a server
// changes those it is given.
func natsOptions(config string, o Options) (*natsserver.Options, error) {
	n := &natsserver.Options{}
	if config != "" {
		var err error
		if n, err = natsserver.ProcessConfigFile(config); err != nil {
			return nil, fmt.Errorf("read NATS configuration %s: %w", config, err)
		}
	}
	n.NoSigs = true // signals belong to the program
	n.JetStream = true
	n.DisableJetStreamBanner = true
	n.ServerName = cmp.Or(o.Name, n.ServerName, defaultName)
	if o.Dir != "" {
		n.StoreDir = o.Dir
	}
	if n.StoreDir == "" {
		return nil, errors.New("no directory for the streams: set Dir")
	}
	if o.MaxStore > 0 {
		n.JetStreamMaxStore = o.MaxStore
	}
	o.Sync.apply(n)
	if err := setListen(n, o.Listen); err != nil {
		return nil, err
	}
	return n, setCluster(n, o.Cluster)
}

// setListen lets the option win over the file; when neither names an address, nothing listens.
func setListen(n *natsserver.Options, listen string) error {
	if listen == "" {
		n.DontListen = n.Host == "" && n.Port == 0
		return nil
	}
	host, text, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("listen address %q is not host:port: %w", listen, err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return fmt.Errorf("listen address %q: port is not a number from 0 to 65535", listen)
	}
	n.Host, n.Port = host, int(port)
	if n.Port == 0 {
		n.Port = randomPort
	}
	return nil
}

func setCluster(n *natsserver.Options, c *ClusterOptions) error {
	if c == nil {
		return nil
	}
	n.Cluster.Name, n.Cluster.Host, n.Cluster.Port = c.Name, "127.0.0.1", c.Port
	for _, r := range c.Routes {
		u, err := url.Parse("nats-route://" + r)
		if err != nil || u.Port() == "" {
			return fmt.Errorf("route %q is not host:port", r)
		}
		n.Routes = append(n.Routes, u)
	}
	return nil
}
