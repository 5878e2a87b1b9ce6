// A worker in JavaScript with two tools, which write a line with the call's id to a file: that is the effect that must not
// happen twice. It takes a while before and after, so that a worker can be killed at any moment.
//
//   node jobs.mjs '{"url":"nats://127.0.0.1:4222","gateKeys":["U…"],"effects":"/tmp/effects","timing":{"lease":2000}}'
import { appendFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { connect } from "nats";
import { Worker } from "./worker.mjs";

const { url, gateKeys, effects, timing } = JSON.parse(process.argv[2]);
const inputSchema = {
  type: "object", properties: { orderId: { type: "string" } }, required: ["orderId"], additionalProperties: false,
};

const job = (id, effect) => ({
  manifest: { id, effect, description: `Does ${id} for an order`, inputSchema },
  run: async ({ orderId }, { toolCallId }) => {
    await sleep(Math.random() * 200);
    appendFileSync(effects, `${toolCallId}\n`);
    await sleep(Math.random() * 200);
    return { orderId, done: id };
  },
});

const nc = await connect({ servers: url, maxReconnectAttempts: -1 });
const worker = new Worker(nc, { gateKeys, tools: [job("charge", "effectful"), job("notify", "idempotent")], ...timing });
await worker.register();
console.log("working");
await worker.work();
