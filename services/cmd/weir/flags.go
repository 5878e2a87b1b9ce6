package main

import (
	"cmp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/internal/config"
)

// flags are those that every command takes.
type flags struct {
	server, context, creds, nkey, user, password, token string
	tlsCA, tlsCert, tlsKey, inboxPrefix, apiPrefix      string
	namespace, principal, signKey, gateKeys             string
	output                                              string

	timeout  time.Duration
	liveOnly bool
	verbose  bool
	json     bool // output is json
}

// textFlag is a flag with a text, and where its value comes from when it is not given.
type textFlag struct {
	name, short, env, usage string
	into                    func(*flags) *string
}

// textFlags is the table of these flags. The environment names are those of the nats command, as far as it has them.
var textFlags = []textFlag{
	{"server", "s", "NATS_URL", "URL of the NATS servers", func(f *flags) *string { return &f.server }},
	{"context", "", "NATS_CONTEXT", "context of the nats command", func(f *flags) *string { return &f.context }},
	{"creds", "", "NATS_CREDS", "credentials file", func(f *flags) *string { return &f.creds }},
	{"nkey", "", "NATS_NKEY", "nkey seed file", func(f *flags) *string { return &f.nkey }},
	{"user", "", "NATS_USER", "user name", func(f *flags) *string { return &f.user }},
	{"password", "", "NATS_PASSWORD", "password", func(f *flags) *string { return &f.password }},
	{"token", "", "NATS_TOKEN", "token", func(f *flags) *string { return &f.token }},
	{"tlsca", "", "NATS_CA", "PEM file of the authority that vouches for servers", func(f *flags) *string { return &f.tlsCA }},
	{"tlscert", "", "NATS_CERT", "PEM file of the own certificate", func(f *flags) *string { return &f.tlsCert }},
	{"tlskey", "", "NATS_KEY", "PEM file of its key", func(f *flags) *string { return &f.tlsKey }},
	{"inbox-prefix", "", "NATS_INBOX_PREFIX", "where replies come in", func(f *flags) *string { return &f.inboxPrefix }},
	{"js-api-prefix", "", "NATS_JS_API_PREFIX", "prefix of an imported JetStream API", func(f *flags) *string { return &f.apiPrefix }},
	{"namespace", "", "WEIR_NAMESPACE", "tenant, or shard of one", func(f *flags) *string { return &f.namespace }},
	{"principal", "", "WEIR_PRINCIPAL", "in whose name; default the user name", func(f *flags) *string { return &f.principal }},
	{"sign-key", "", "WEIR_SIGN_KEY", "nkey seed file that signs starts and decisions", func(f *flags) *string { return &f.signKey }},
	{"gate-keys", "", "WEIR_GATE_KEYS", "public keys of gates, with commas: answers must be signed by one", func(f *flags) *string { return &f.gateKeys }},
	{"output", "o", "WEIR_OUTPUT", "text or json", func(f *flags) *string { return &f.output }},
}

// Outputs.
const (
	outputText = "text"
	outputJSON = "json"
)

const defaultTimeout = 5 * time.Second

func (f *flags) define(root *cobra.Command) {
	set := root.PersistentFlags()
	for _, t := range textFlags {
		set.StringVarP(t.into(f), t.name, t.short, "", t.usage+" ($"+t.env+")")
	}
	set.DurationVar(&f.timeout, "timeout", 0, "limit of connecting, default 5s ($NATS_TIMEOUT)")
	set.BoolVar(&f.liveOnly, "live-only", false, "the user may read no stream: hear what happens, and nothing else")
	set.BoolVarP(&f.verbose, "verbose", "v", false, "say what happens, on the standard error")
}

// readEnvironment fills in what no flag says.
func (f *flags) readEnvironment(lookup config.Lookup) error {
	for _, t := range textFlags {
		if into := t.into(f); *into == "" {
			*into, _ = lookup(t.env)
		}
	}
	if text, ok := lookup("NATS_TIMEOUT"); ok && f.timeout == 0 {
		d, err := time.ParseDuration(text)
		if err != nil {
			return usagef("NATS_TIMEOUT: %v", err)
		}
		f.timeout = d
	}
	f.timeout = cmp.Or(f.timeout, defaultTimeout)
	if f.server == "" && f.context == "" {
		f.context = selectedContext(lookup)
	}
	system, _ := lookup("USER")
	f.principal = cmp.Or(f.principal, f.user, system)
	switch f.output = cmp.Or(f.output, outputText); f.output {
	case outputText, outputJSON:
		f.json = f.output == outputJSON
	default:
		return usagef("output %q: use text or json", f.output)
	}
	if f.namespace != "" {
		if _, err := events.ParseNamespace(f.namespace); err != nil {
			return usagef("--namespace: %v", err)
		}
	}
	return nil
}

// options say where and as whom to connect.
func (f *flags) options() jetstream.Options {
	return jetstream.Options{
		URL: f.server, Context: f.context, Creds: f.creds, NKeySeedFile: f.nkey, User: f.user, Password: f.password,
		Token: f.token, CA: f.tlsCA, Cert: f.tlsCert, Key: f.tlsKey, InboxPrefix: f.inboxPrefix,
		APIPrefix: strings.TrimSuffix(f.apiPrefix, "."), Namespace: events.Namespace(f.namespace),
	}
}
