// A program written for Mastra's server, with its unmodified client. It uses what such programs use, and prints what it was
// told as one line of JSON.
//
//   node mastra.mjs http://127.0.0.1:4111
import { MastraClient } from "@mastra/client-js";

const client = new MastraClient({ baseUrl: process.argv[2], retries: 0 });
const said = {};

// read gives the chunks of a stream.
async function read(stream) {
  const chunks = [];
  await stream.processDataStream({ onChunk: async (chunk) => void chunks.push(chunk) });
  return chunks;
}

const types = (chunks) => chunks.map((chunk) => chunk.type).filter((type, i, all) => type !== all[i - 1]).join(" ");

// refused gives the message and the status of a request that must fail.
async function refused(request) {
  try {
    await request();
  } catch (error) {
    return { status: error.status, body: error.body };
  }
  return null;
}

const agents = await client.listAgents();
said.agents = Object.keys(agents).sort();
said.tools = Object.keys(await client.listTools()).sort();
const agent = client.getAgent("clerk");
const details = await agent.details();
said.details = { name: details.name, held: details.tools.refund.requireApproval, schema: JSON.parse(details.tools.refund.inputSchema).json.type };
said.executed = await client.getTool("lookup_order").execute({ data: { orderId: "1042" } });
said.unknown = await refused(() => client.getAgent("nope").details());

const output = await agent.generate("look");
said.generate = { text: output.text, finishReason: output.finishReason, results: output.steps[0].toolResults.length };

// A call is held, and approved; the continuation ends the run.
let chunks = await read(await agent.stream("pay"));
said.held = types(chunks);
const { runId, payload } = chunks.at(-1);
said.suspended = (await agent.listSuspendedRuns()).runs.map((run) => run.runId === runId);
said.approved = types(await read(await agent.approveToolCall({ runId, toolCallId: payload.toolCallId })));
said.late = await refused(() => agent.approveToolCallGenerate({ runId, toolCallId: payload.toolCallId }));

// The same by generate, and declined.
const held = await agent.generate("pay");
said.heldGenerate = { finishReason: held.finishReason, toolName: held.suspendPayload.toolName };
const declined = await agent.declineToolCallGenerate({
  runId: held.runId, toolCallId: held.suspendPayload.toolCallId, reason: "too risky",
});
said.declined = { text: declined.text, finishReason: declined.finishReason, steps: declined.steps.length };

// A tool that suspends itself gets its data.
chunks = await read(await agent.stream("city"));
said.asked = types(chunks);
said.resumed = types(await read(await agent.resumeStream({ name: "Oslo" }, { runId: chunks.at(-1).runId, toolCallId: chunks.at(-1).payload.toolCallId })));

// A tool of this program is executed here, and its result goes back into the same run.
const colors = [];
const clientTools = {
  color: {
    id: "color", description: "Paint", inputSchema: { type: "object", properties: { c: { type: "string" } }, required: ["c"] },
    execute: async (args) => { colors.push(args); return { ok: true }; },
  },
};
chunks = await read(await agent.stream("color", { clientTools }));
said.painted = { types: types(chunks), runs: new Set(chunks.map((chunk) => chunk.runId)).size };
const painted = await agent.generate("color", { clientTools });
said.paintedGenerate = { text: painted.text, finishReason: painted.finishReason };
said.colors = colors.map((args) => args.c);

console.log(JSON.stringify(said));
process.exit(0);
