package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/client"
	"github.com/weirkeeper/weir/services/internal/config"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// Who takes part in the demo.
const (
	demoCustomer = "bob"
	demoApprover = "alice"
	demoPrompt   = "Please refund order 1042"
)

const (
	// demoTime bounds the demo when nobody has to be waited for: no person, no real model.
	demoTime = 50 * time.Second
	// demoPause is how long the approving process looks at a question. By then the executor is gone.
	demoPause = 2 * time.Second
)

//go:embed demo.yaml
var demoFile string

func newDemoCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "demo", Short: "Tell the story of a refund that waits for somebody", Args: cobra.NoArgs,
		Long: `Tell the story of a refund: an agent looks an order up, which runs at once, and asks for a refund, which is held. The
tool-executor, a process of its own, is killed meanwhile and another one is started; a counter outside shows that the refund
is issued once.

At a terminal you are asked. Elsewhere a process decides that only subscribes to NATS. It needs no key, and ends by itself.
With OPENAI_API_KEY, or OPENAI_BASE_URL and WEIR_MODEL, a real model plays the agent; so it does with ANTHROPIC_API_KEY or
GEMINI_API_KEY, and a WEIR_MODEL of theirs (anthropic/…, google/…).`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := a.demo(cmd.Context())
			if errors.Is(err, errLeft) { // so the person wants it to end
				newTeller(a.out).text("", "You left it open, so the demo ends here. Elsewhere the call would wait on.")
				return nil
			}
			return err
		},
	}
	cmd.AddCommand(newApproverCommand(a))
	return cmd
}

// demo is the stage: a server, a shop, the services in this process, and the processes that come and go.
type demo struct {
	app    *app
	log    *slog.Logger
	person bool // somebody sits at the terminal: ask them
	tell   *teller
	model  string
	shop   *shopServer
	local  *local
	conn   *jetstream.Conn
	client *client.Client
	file   string // the weir.yaml

	executor  *process
	approver  *process
	failed    chan error
	decided   chan events.CallAnswered
	said      chan struct{} // a line of the approver has been told
	approvals int
	kills     int
}

// demo tells the story of a refund that waits for somebody, and that is paid once although the process that should pay
// it is killed meanwhile.
func (a *app) demo(ctx context.Context) error {
	model, err := builtinModel(a.lookup)
	if err != nil {
		return err
	}
	if !a.interactive() && model == scriptedModel {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, demoTime, errors.New("the demo took too long on this machine"))
		defer cancel()
	}
	dir, err := os.MkdirTemp("", "weir-demo-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a folder of temporary files
	d := &demo{
		app: a, log: a.logger(slog.LevelError), person: a.interactive(), tell: newTeller(a.out), model: model,
		failed: make(chan error, 4), decided: make(chan events.CallAnswered, 4), said: make(chan struct{}, 64), file: filepath.Join(dir, defaultFile),
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop, err := d.open(ctx, cancel, dir)
	if err != nil {
		return err
	}
	defer stop()
	if err := d.story(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	return d.moral()
}

// open starts everything. What fails later ends the context.
func (d *demo) open(ctx context.Context, fail context.CancelCauseFunc, dir string) (stop func(), err error) {
	var closers []func()
	stop = func() {
		for i := range closers {
			closers[len(closers)-1-i]()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	if d.shop, err = openShop(ctx); err != nil {
		return nil, err
	}
	closers = append(closers, background(ctx, fail, d.shop.Run))
	if d.local, err = startLocal(ctx, localOptions{
		Dir: dir, Listen: "127.0.0.1:0", Log: d.log,
		Settings: jetstream.Settings{Retention: config.DefaultRetention},
	}); err != nil {
		return nil, err
	}
	closers = append(closers, d.local.Close)
	if d.conn, err = d.local.dial(ctx, "demo"); err != nil {
		return nil, err
	}
	closers = append(closers, func() { hangUp(d.conn) })
	if err := d.apply(ctx); err != nil {
		return nil, err
	}
	w, err := d.worker(ctx)
	if err != nil {
		return nil, err
	}
	closers = append(closers, background(ctx, fail, w.Run))
	d.client = client.New(d.conn, client.Config{Principal: demoCustomer})
	closers = append(closers, d.client.Close, func() {
		for _, p := range []*process{d.approver, d.executor} {
			if p != nil {
				p.Stop()
			}
		}
	})
	return stop, d.listen(ctx)
}

// background runs f until stop is called, and waits for it then. When it fails it ends the context of all.
func background(ctx context.Context, fail context.CancelCauseFunc, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(ctx); err != nil {
			fail(err)
		}
	}()
	return func() { cancel(); <-done }
}

// apply writes the demo's weir.yaml and applies it, as weir apply does.
func (d *demo) apply(ctx context.Context) error {
	tmpl, err := template.New(defaultFile).Parse(demoFile)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	values := map[string]string{"Model": d.model, "Shop": d.shop.Addr(), "Instructions": exampleInstructions}
	if err := tmpl.Execute(&text, values); err != nil {
		return err
	}
	if err := os.WriteFile(d.file, text.Bytes(), 0o600); err != nil {
		return err
	}
	file, err := config.Load(d.file, d.app.lookup)
	if err != nil {
		return err
	}
	_, err = config.Apply(ctx, d.conn, file, nil)
	return err
}

// worker is the planner and the gate, in this process.
func (d *demo) worker(ctx context.Context) (*worker, error) {
	models, err := modelsOf(nil, d.app.lookup)
	if err != nil {
		return nil, err
	}
	keys, err := d.local.gateKeys()
	if err != nil {
		return nil, err
	}
	return newWorker(ctx, workerConfig{
		Dial: d.local.dial, Key: &d.local.key, GateKeys: keys, Dev: true, Models: models,
		Log: d.log,
	}, planner.Name, approval.Name)
}

// listen hears the decisions that count.
func (d *demo) listen(ctx context.Context) error {
	_, err := d.conn.Hear(ctx, d.conn.Namespace().EveryCall(events.KindAnswer), func(e events.Event) {
		if a, err := events.Data[events.CallAnswered](e); err == nil && e.Seq > 0 {
			select {
			case d.decided <- a:
			default: // the story waits for one at a time
			}
		}
	})
	return err
}

// startExecutor starts a tool-executor as a process of its own.
func (d *demo) startExecutor(ctx context.Context) (err error) {
	d.executor, err = startProcess(ctx, toolexecutor.Name, nil, "serve", toolexecutor.Name, "--server",
		d.local.server.ClientURL(), "-f", d.file, "--gate-public-key", d.local.key.Public, "--admin", "")
	if err == nil {
		go d.watch(d.executor)
	}
	return err
}

// startApprover starts the process that decides when there is nobody to ask.
func (d *demo) startApprover(ctx context.Context) (err error) {
	ready := make(chan struct{}, 1)
	d.approver, err = startProcess(ctx, "approver", func(p *process, line string) {
		if line == approverReady {
			ready <- struct{}{}
			return
		}
		d.tell.line(fmt.Sprintf("process %d", p.ID()), line)
		d.said <- struct{}{}
	}, "demo", "approver", "--server", d.local.server.ClientURL(), "--as", demoApprover, "--after", demoPause.String())
	if err != nil {
		return err
	}
	go d.watch(d.approver)
	select {
	case <-ready: // what is asked from now on, it hears
		return nil
	case err := <-d.failed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// watch tells when a process ends that should not.
func (d *demo) watch(p *process) {
	<-p.ended
	if err := p.Failed(); err != nil {
		select {
		case d.failed <- err:
		default: // one failure ends the story
		}
	}
}

// counted is how often the shop was asked for an order, and paid a refund.
func (d *demo) counted() string {
	lookups, refunds := d.shop.counts()
	return fmt.Sprintf("%s, %s", counted(lookups, "lookup"), counted(refunds, "refund"))
}
