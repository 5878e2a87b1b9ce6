package gateway

import (
	"net/http"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// Route is one thing that a gateway answers. The table of them is what its handlers, the manifest for command lines and the
// description for people are made from.
type Route struct {
	Method string
	Path   string // in the form of [http.ServeMux]
	Scope  string // that a caller needs, or several of which one is enough; empty: everybody may, without login
	About  string // one line
	Mastra bool   // one of Mastra's routes

	Query  any    // a struct of the query's parameters; nil: none
	Body   any    // what the body is decoded into; nil: none
	Answer any    // what the answer is made of; nil: not JSON, or the tool's own
	Shape  string // of the answer, for command lines: record, single, or list and the field that holds it

	small  bool // the body is a decision
	handle func(*request) (any, error)
	stream func(*request) error // in place of handle: it writes the answer itself
}

func (r Route) limit() int64 {
	if r.small {
		return maxDecision
	}
	return maxBody
}

// scopeStop is that of whoever may stop something: to stop is safe.
var scopeStop = strings.Join(events.ScopesToStop(), " ")

// Routes is the table. What is not in it is not there.
func Routes() []Route { return append(manifestRoutes(events.MayRead), routes()...) }

func routes() []Route { //nolint:funlen // a table
	return []Route{
		{Method: http.MethodGet, Path: "/healthz", About: "whether the gateway lives", stream: health},

		{
			Method: http.MethodGet, Path: "/api/agents", Scope: events.MayRead, About: "the agents, by id", Mastra: true,
			Query: agentsQuery{}, Answer: map[string]agentView{}, Shape: "record", handle: listAgents,
		},
		{
			Method: http.MethodGet, Path: "/api/agents/{agentId}", Scope: events.MayRead, About: "one agent", Mastra: true,
			Answer: agentView{}, handle: getAgent,
		},
		{
			Method: http.MethodPost, Path: "/api/agents/{agentId}/generate", Scope: events.MayStart, About: "start a run and wait for its output",
			Mastra: true, Body: startBody{}, Answer: outputView{}, handle: generate,
		},
		{
			Method: http.MethodPost, Path: "/api/agents/{agentId}/stream", Scope: events.MayStart, About: "start a run and stream it",
			Mastra: true, Body: startBody{}, stream: stream,
		},
		{
			Method: http.MethodPost, Path: "/api/agents/{agentId}/generate/vnext", Scope: events.MayStart, About: "start a run and wait for its output",
			Mastra: true, Body: startBody{}, Answer: outputView{}, handle: generate,
		},
		{
			Method: http.MethodPost, Path: "/api/agents/{agentId}/stream/vnext", Scope: events.MayStart, About: "start a run and stream it",
			Mastra: true, Body: startBody{}, stream: stream,
		},
		{
			Method: http.MethodPost, Path: "/api/agents/{agentId}/approve-tool-call", Scope: events.MayDecide, About: "approve a call and stream what comes of it",
			Mastra: true, Body: decideBody{}, small: true, stream: decideStream(approve, true),
		},
		{
			Method: http.MethodPost, Path: "/api/agents/{agentId}/decline-tool-call", Scope: events.MayDecide, About: "decline a call and stream what comes of it",
			Mastra: true, Body: decideBody{}, small: true, stream: decideStream(decline, true),
		},
		{
			Method: http.MethodPost, Path: "/api/agents/{agentId}/approve-tool-call-generate", Scope: events.MayDecide, About: "approve a call and wait for the output",
			Mastra: true, Body: decideBody{}, small: true, Answer: outputView{}, handle: decideOutput(approve, true),
		},
		{
			Method: http.MethodPost, Path: "/api/agents/{agentId}/decline-tool-call-generate", Scope: events.MayDecide, About: "decline a call and wait for the output",
			Mastra: true, Body: decideBody{}, small: true, Answer: outputView{}, handle: decideOutput(decline, true),
		},
		{
			Method: http.MethodPost, Path: "/api/agents/{agentId}/resume-stream", Scope: events.MayDecide, About: "give a suspended tool its data and stream what comes of it",
			Mastra: true, Body: decideBody{}, small: true, stream: decideStream(resume, false),
		},
		{
			Method: http.MethodPost, Path: "/api/agents/{agentId}/resume-generate", Scope: events.MayDecide, About: "give a suspended tool its data and wait for the output",
			Mastra: true, Body: decideBody{}, small: true, Answer: outputView{}, handle: decideOutput(resume, false),
		},
		{
			Method: http.MethodGet, Path: "/api/agents/{agentId}/suspended-runs", Scope: events.MayRead, About: "runs of an agent that wait for people",
			Mastra: true, Query: suspendedQuery{}, Answer: client.Page{}, Shape: "runs", handle: suspendedRuns,
		},
		{
			Method: http.MethodGet, Path: "/api/agents/{agentId}/tools/{toolId}", Scope: events.MayRead, About: "one tool of an agent", Mastra: true,
			Answer: toolView{}, handle: getAgentTool,
		},
		{
			Method: http.MethodPost, Path: "/api/agents/{agentId}/tools/{toolId}/execute", Scope: events.MayStart, About: "call one tool of an agent",
			Mastra: true, Query: executeQuery{}, Body: executeBody{}, handle: executeAgentTool,
		},
		{
			Method: http.MethodGet, Path: "/api/tools", Scope: events.MayRead, About: "the tools, by key", Mastra: true,
			Answer: map[string]toolView{}, Shape: "record", handle: listTools,
		},
		{
			Method: http.MethodGet, Path: "/api/tools/{toolId}", Scope: events.MayRead, About: "one tool, by id or key", Mastra: true,
			Answer: toolView{}, handle: getTool,
		},
		{
			Method: http.MethodPost, Path: "/api/tools/{toolId}/execute", Scope: events.MayStart, About: "call one tool, through the gate",
			Mastra: true, Query: executeQuery{}, Body: executeBody{}, handle: execute,
		},

		{
			Method: http.MethodPost, Path: "/api/runs", Scope: events.MayStart, About: "start a run of an agent, or one call of a tool",
			Body: events.RunRequested{}, Answer: startedView{}, handle: startRun,
		},
		{
			Method: http.MethodGet, Path: "/api/runs", Scope: events.MayRead, About: "runs that wait or go on, the latest first",
			Query: runsQuery{}, Answer: runsView{}, Shape: "items", handle: listRuns,
		},
		{
			Method: http.MethodGet, Path: "/api/runs/{runId}", Scope: events.MayRead, About: "the state of a run",
			Query: runQuery{}, Answer: runView{}, handle: getRun,
		},
		{
			Method: http.MethodGet, Path: "/api/runs/{runId}/chunks", Scope: events.MayRead, About: "follow a run by its cursor",
			Query: followQuery{}, stream: followRun,
		},
		{
			Method: http.MethodPost, Path: "/api/runs/{runId}/cancel", Scope: scopeStop, About: "cancel a run, or one call of it",
			Body: cancelBody{}, Answer: cancelView{}, small: true, handle: cancelRun,
		},
		{
			Method: http.MethodGet, Path: "/api/asks", Scope: events.MayRead, About: "the inbox: what waits for people, the oldest first",
			Query: asksQuery{}, Answer: list[openAsk]{}, Shape: "items", handle: listAsks,
		},
		{
			Method: http.MethodGet, Path: "/api/asks/stream", Scope: events.MayRead, About: "news about asks, from now on",
			stream: watchAsks,
		},
		{
			Method: http.MethodGet, Path: "/api/asks/{toolCallId}", Scope: events.MayRead, About: "the open ask of a call",
			Answer: events.CallHeld{}, handle: getAsk,
		},
		{
			Method: http.MethodPost, Path: "/api/asks/{toolCallId}/decision", Scope: events.MayDecide, About: "decide a call",
			Body: decisionBody{}, Answer: events.DecisionOutcome{}, small: true, handle: decide,
		},
		{
			Method: http.MethodPost, Path: "/api/asks/decisions", Scope: events.MayDecide, About: "approve or decline calls that were looked at",
			Body: batchBody{}, Answer: list[batchItem]{}, small: true, handle: decideMany,
		},
	}
}
