// Package telemetry tells tracing systems what services do, in OpenTelemetry. A trace follows a run: the trace context
// travels in the traceparent of events, so the delivery of an event is a span below what has led to it, and what a service
// does meanwhile (a turn of a model, a tool) is a span below that.
//
// Spans hold ids, names, counts and codes, never what people, models or tools have said. What an author adds to the spans
// of his own tool is his.
package telemetry

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Names of spans and their attributes: those of OpenTelemetry's conventions for generative AI and messaging where they have
// one (https://opentelemetry.io/docs/specs/semconv/gen-ai/), else below weir.
const (
	SpanChat = "chat"         // and the model: one attempt at a turn
	SpanTool = "execute_tool" // and the tool: one attempt at a call

	Operation    = "gen_ai.operation.name"
	Agent        = "gen_ai.agent.id"
	Conversation = "gen_ai.conversation.id"
	Model        = "gen_ai.request.model"
	InputTokens  = "gen_ai.usage.input_tokens"  //nolint:gosec // tokens of a text
	OutputTokens = "gen_ai.usage.output_tokens" //nolint:gosec // the same
	Finish       = "gen_ai.response.finish_reasons"
	Tool         = "gen_ai.tool.name"
	Call         = "gen_ai.tool.call.id"

	Attempt   = "weir.attempt"
	Run       = "weir.run_id"
	Outcome   = "weir.outcome"
	errorType = "error.type"

	system       = "messaging.system"
	consumerName = "messaging.consumer.group.name"
	eventName    = "weir.event_type"

	// of what authors log to their spans
	logLevel, logData = "log.level", "log.data"
)

// maxLog bounds what an author adds to a span at once, in bytes.
const maxLog = 8 << 10

// scope is who makes the spans.
const scope = "github.com/weirkeeper/weir"

// TracesConfig says where spans go.
type TracesConfig struct {
	// Endpoint is the URL of an OTLP receiver over HTTP, such as http://localhost:4318/v1/traces.
	Endpoint string
	// Service and Version are what the spans are of.
	Service, Version string
	// Ratio is the share of traces that are kept, of those that nobody has decided about before. Zero: all.
	Ratio float64
	// Failed is told when spans could not be sent. Nil: nobody is.
	Failed func(error)
	// Exporter takes the spans in place of the endpoint, each as it ends. For tests.
	Exporter sdktrace.SpanExporter
}

// Traces sends spans to a receiver. A receiver that is away or slow loses spans, and holds nothing up.
type Traces struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// NewTraces makes the sender. [Traces.Close] sends what is left.
func NewTraces(ctx context.Context, cfg TracesConfig) (*Traces, error) {
	about := resource.NewSchemaless(attribute.String("service.name", cfg.Service), attribute.String("service.version", cfg.Version))
	ratio := cfg.Ratio
	if ratio == 0 {
		ratio = 1
	}
	options := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(about), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio))),
	}
	if cfg.Failed != nil {
		otel.SetErrorHandler(otel.ErrorHandlerFunc(cfg.Failed)) // the SDK has one for the process
	}
	if cfg.Exporter != nil {
		options = append(options, sdktrace.WithSyncer(cfg.Exporter))
	} else {
		exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(cfg.Endpoint))
		if err != nil {
			return nil, fmt.Errorf("traces to %s: %w", cfg.Endpoint, err)
		}
		options = append(options, sdktrace.WithBatcher(exporter))
	}
	t := &Traces{provider: sdktrace.NewTracerProvider(options...)}
	t.tracer = t.provider.Tracer(scope)
	return t, nil
}

// Close sends the spans that have ended, as long as ctx lets it.
func (t *Traces) Close(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

var w3c = propagation.TraceContext{}

const traceparent = "traceparent"

// Deliver begins the span of an event's delivery to a consumer, below the event's trace context; one that cannot be read
// begins a trace. It returns the context of what is done about the delivery, the trace context for what that leads to, and
// what ends the span.
func (t *Traces) Deliver(ctx context.Context, consumer, eventType, run, parent string) (context.Context, string, func(error)) {
	ctx = w3c.Extract(ctx, propagation.MapCarrier{traceparent: parent})
	ctx, span := t.tracer.Start(ctx, consumer+" "+eventType, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		attribute.String(system, "nats"), attribute.String(consumerName, consumer),
		attribute.String(eventName, eventType), attribute.String(Run, run)))
	carrier := propagation.MapCarrier{}
	w3c.Inject(ctx, carrier)
	return ctx, carrier[traceparent], func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, "") // its text may hold what somebody has said
		}
		span.End()
	}
}

// Span is something that a service does. The span of a context without tracing takes everything and says nothing.
type Span struct{ span trace.Span }

// Begin begins a span below that of the context. It must be ended.
func Begin(ctx context.Context, name string, attributes map[string]any) (context.Context, Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, Span{trace.SpanFromContext(context.Background())}
	}
	ctx, span := parent.TracerProvider().Tracer(scope).Start(ctx, name, trace.WithAttributes(listOf(attributes)...))
	return ctx, Span{span}
}

// Set adds attributes.
func (s Span) Set(attributes map[string]any) { s.span.SetAttributes(listOf(attributes)...) }

// End ends the span; code says how it failed, and is empty when it did not.
func (s Span) End(code string) {
	if code != "" {
		s.span.SetAttributes(attribute.String(errorType, code))
		s.span.SetStatus(codes.Error, code)
	}
	s.span.End()
}

// Log adds what an author says to the span of the context, with the moment.
func Log(ctx context.Context, level, message string, data any) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	attributes := []attribute.KeyValue{attribute.String(logLevel, level)}
	if data != nil {
		attributes = append(attributes, attribute.String(logData, cut(fmt.Sprint(data))))
	}
	span.AddEvent(cut(message), trace.WithTimestamp(time.Now()), trace.WithAttributes(attributes...))
}

func cut(s string) string {
	if len(s) > maxLog {
		return s[:maxLog] + "…"
	}
	return s
}

// listOf are attributes as the SDK has them.
func listOf(attributes map[string]any) []attribute.KeyValue {
	list := make([]attribute.KeyValue, 0, len(attributes))
	for key, value := range attributes {
		switch v := value.(type) {
		case string:
			list = append(list, attribute.String(key, v))
		case bool:
			list = append(list, attribute.Bool(key, v))
		case int:
			list = append(list, attribute.Int(key, v))
		case int64:
			list = append(list, attribute.Int64(key, v))
		case float64:
			list = append(list, attribute.Float64(key, v))
		case []string:
			list = append(list, attribute.StringSlice(key, v))
		default:
			list = append(list, attribute.String(key, cut(fmt.Sprint(v))))
		}
	}
	return list
}
