package main

import (
	"context"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/internal/config"
	"github.com/weirkeeper/weir/services/internal/telemetry"
)

// Where OpenTelemetry's own programs look for a receiver; its other variables, such as OTEL_EXPORTER_OTLP_HEADERS, count too.
const (
	envTraces    = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	envTelemetry = "OTEL_EXPORTER_OTLP_ENDPOINT"
	tracesPath   = "/v1/traces"
)

// tracesGrace is how long the last spans may take on their way.
const tracesGrace = 3 * time.Second

// traceFlags say where the traces of a process go.
type traceFlags struct {
	url   string
	share float64
}

func defineTraces(cmd *cobra.Command, o *traceFlags) {
	cmd.Flags().StringVar(&o.url, "traces", "", "URL of an OTLP receiver of traces, such as http://localhost:4318/v1/traces ($"+envTelemetry+")")
	cmd.Flags().Float64Var(&o.share, "trace-share", 1, "share of the runs that are traced, above 0 and up to 1")
}

// start begins to trace, if there is a receiver. What it returns ends that, and sends what is left.
func (o traceFlags) start(ctx context.Context, lookup config.Lookup, log *slog.Logger) (jetstream.Tracer, func(), error) {
	to := o.url
	if to == "" {
		to, _ = lookup(envTraces)
	}
	if base, _ := lookup(envTelemetry); to == "" && base != "" {
		to = strings.TrimSuffix(base, "/") + tracesPath
	}
	if to == "" {
		return nil, func() {}, nil
	}
	u, err := url.Parse(to)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, nil, usagef("%q is no URL of a receiver of traces: want one such as http://localhost:4318/v1/traces", to)
	case o.share <= 0 || o.share > 1:
		return nil, nil, usagef("--trace-share %v is no share: want more than 0, and 1 at most", o.share)
	}
	traces, err := telemetry.NewTraces(ctx, telemetry.TracesConfig{
		Endpoint: to, Service: "weir", Version: version, Ratio: o.share,
		Failed: func(err error) { log.WarnContext(ctx, "traces are lost", "error", err) },
	})
	if err != nil {
		return nil, nil, err
	}
	return traces, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracesGrace)
		defer cancel()
		if err := traces.Close(last); err != nil {
			log.WarnContext(last, "traces are lost", "error", err)
		}
	}, nil
}
