// Package tools holds the tools that come with Weir. An agent has those that it is given, under any key; none is added
// unasked:
//
//	helper := &agent.Agent{
//		ID: "helper", Model: "openai/gpt-5",
//		Tools: agent.Tools{"ask": tools.AskUser, "plan": tools.SubmitPlan},
//	}
//
// [Builtins] gives all of them at once. They are tools like any other: operators' rules hold or block them (builtin:*
// names all of them), and an executor hosts them. In weir.yaml an agent names them by their ids, and executors that are
// started from that file host them in the default pool:
//
//	agents:
//	  helper: {model: openai/gpt-5, tools: {ask: ask_user, fetch: web_fetch}}
//
// # Asking people
//
// [AskUser] asks a question and waits for the answer, [SubmitPlan] submits a plan and waits for the decision. Both
// suspend themselves, so waiting costs no worker, and survives everything:
//
//	weir approvals resume CALL --data '"Monday"'
//
// Where an agent resumes suspended tools automatically, what the user says next in the conversation may be the answer.
//
// # Task lists
//
// [Tasks] are four tools with which an agent plans and ticks off its work. Add them to others with maps.Copy:
//
//	helper.Tools = tools.Tasks()
//	helper.Tools["ask"] = tools.AskUser
//
// The list belongs to the conversation: to the run's thread and the resource that owns it. Runs, sub-agents and workers
// may change it at once; each change is there, once, also when a worker dies in the middle. Runs without a thread and a
// resource have no list, and the tools say so. Whoever follows the run is shown how the list stands, as transient chunks of
// type data-signal: the whole list first, then what changes.
//
// # The web
//
// [WebFetch] fetches a page by its URL. Nothing inside private networks is reached, whatever the URL, its redirects or
// name servers say. What it gives to a model was written by others: rules, not instructions, decide what such an agent
// may do.
package tools
