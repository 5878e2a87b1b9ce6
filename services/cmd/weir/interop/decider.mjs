// A principal who knows nothing but NATS and CloudEvents. It listens for asks; at the first one it sends decisions that
// must not count, then the one that does, and then one that comes too late. For each it prints one line: the name, and
// what it was told.
//
//   node decider.mjs '{"url":"nats://127.0.0.1:4222","prefix":"weir.default","principal":"carol","seed":"SU…"}'
import { connect, headers, nkeys, StringCodec } from "nats";
import { CloudEvent, HTTP } from "cloudevents";

const { url, prefix, principal, seed } = JSON.parse(process.argv[2]);
const text = StringCodec();
const nc = await connect({ servers: url });
const key = nkeys.fromSeed(text.encode(seed));

// toEvent reads a message with the official package.
function toEvent(msg) {
  const named = Object.fromEntries(msg.headers.keys().map((name) => [name.toLowerCase(), msg.headers.get(name)]));
  return HTTP.toEvent({ headers: named, body: text.decode(msg.data) });
}

// listen gives a function that waits for the next event on a subject that fits.
function listen(subject) {
  const messages = nc.subscribe(subject)[Symbol.asyncIterator]();
  return async () => {
    const { value: msg } = await messages.next();
    return { subject: msg.subject, event: toEvent(msg) };
  };
}

// sign covers the domain, the subject and the bytes, with a zero byte between.
function sign(subject, body) {
  const bytes = text.encode(`weir.decision.v1\0${subject}\0${body}`);
  return Buffer.from(key.sign(bytes)).toString("base64url");
}

function encode({ run, data }) {
  const event = new CloudEvent({
    type: "dev.weirkeeper.decision.requested.v1", source: "/programs/decider", subject: run, authid: principal, data,
  });
  return HTTP.structured(event);
}

const nextAsk = listen(`${prefix}.run.*.call.*.ask`);
const nextAnswer = listen(`${prefix}.run.*.call.*.answer`);
const nextNote = listen(`${prefix}.note.${principal}.>`);
await nc.flush();
console.log(JSON.stringify({ name: "listening" }));

const { event: ask } = await nextAsk();
const { runId: run, toolCallId, fingerprint } = ask.data;
const right = { decision: "approve", toolCallId, fingerprint, reason: "from another language" };

// send publishes a decision and returns its place in the inbox.
async function send({ data = right, body, signed = true }) {
  const message = encode({ run, data });
  body ??= message.body;
  const subject = `${prefix}.in.decide.${principal}.${run}.${data.toolCallId.split("=").pop()}`;
  const named = headers();
  named.set("content-type", message.headers["content-type"]);
  if (signed) {
    named.set("weir-key", key.getPublicKey());
    named.set("weir-sig", sign(subject, body));
  }
  const ack = await nc.request(subject, text.encode(body), { headers: named, timeout: 10_000 });
  return JSON.parse(text.decode(ack.data)).seq;
}

async function tell(name, decision) {
  const seq = await send(decision);
  const { subject, event } = await nextNote();
  console.log(JSON.stringify({ name, seq, subject, type: event.type, told: event.data }));
}

await tell("malformed", { body: '{"specversion":"1.0",' });
await tell("unsigned", { signed: false });
await tell("wrong fingerprint", { data: { ...right, fingerprint: `sha256:${"0".repeat(64)}` } });
await tell("unknown call", { data: { ...right, toolCallId: `${run}=7-1` } });
const seq = await send({});
const { event: answer } = await nextAnswer();
console.log(JSON.stringify({ name: "right", seq, type: answer.type, answer: answer.data }));
await tell("late", { data: { ...right, decision: "decline" } });
await nc.drain();
