// A worker: it hosts tools by the worker protocol of events/README.md, and knows nothing but NATS, JSON and Ed25519. Like
// every worker it may be killed at any line. What it has appended is true, and whoever finds it goes on from there.
//
//   const worker = new Worker(await connect({ servers }), { gateKeys: ["U…"], tools: [{ manifest, run }] });
//   await worker.register();
//   await worker.work();
//
// run(args, call) gives the result; it may throw an Error, or a Suspension to ask people for data first. call has toolCallId
// (the idempotency key), attempt, resume, and signal, which tells that the call was cancelled or its time is over.
import { createHash, createPublicKey, randomBytes, verify } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { createInbox, headers as natsHeaders } from "nats";
import Ajv from "ajv/dist/2020.js";

export class Suspension { constructor(payload) { this.payload = payload; } }

const sha256 = (...parts) => parts.reduce((h, p) => h.update(p), createHash("sha256")).digest("hex");
const repeatable = (manifest) => manifest.effect === "read_only" || manifest.effect === "idempotent";
const parse = (text) => { try { return JSON.parse(text); } catch { return undefined; } };
const sameEvent = (a, b) => a.event?.id === b.id && a.event?.source === b.source;

export class Worker {
  id = uuid7(); // of this process, never used again
  since = new Date().toISOString();
  hosts = new Map(); // tool id → { manifest, run, fits }
  running = new Map(); // toolCallId → AbortController

  constructor(nc, { namespace = "default", pool = "default", gateKeys, tools, slots = 10, lease = 30_000, progress = 10_000, live = 5_000 }) {
    Object.assign(this, { nc, namespace, pool, slots, lease, progress, live });
    [this.prefix, this.runs, this.registry] = [`weir.${namespace}`, `weir_${namespace}_runs`, `weir_${namespace}_registry`];
    this.gateKeys = new Map(gateKeys.map((text) => [text, publicKey(text)])); // from our own configuration, never from the bus
    for (const { manifest, run } of tools) {
      const full = {
        version: "1", effect: "effectful", timeout: "5m", ...manifest, pool, source: { kind: "go" },
        inputSchemaDigest: `sha256:${sha256(canonical(manifest.inputSchema))}`,
      };
      this.hosts.set(full.id, { manifest: full, run, fits: new Ajv({ strict: false }).compile(full.inputSchema) });
    }
  }

  // 1. Register: the manifest by its content and by its name, and a sign of life while the process lives.
  async register() {
    for (const { manifest } of this.hosts.values()) {
      const body = JSON.stringify(manifest);
      await this.put(`def.${sha256(body)}`, body);
      await this.put(`tool.${token(manifest.id)}`, body);
    }
    await this.tellLife();
    setInterval(() => this.tellLife().catch(() => {}), this.live).unref();
  }

  tellLife() {
    const tools = [...this.hosts.values()].map(({ manifest: m }) => `${m.id}@${m.version}`);
    const body = JSON.stringify({ service: "tool-executor", id: this.id, pool: this.pool, tools, since: this.since });
    return this.put(`live.tool-executor.${token(this.id)}`, body, { "Nats-TTL": `${(3 * this.live) / 1000}s` });
  }

  async put(key, body, named = {}) {
    const reply = await this.request(`$KV.${this.registry}.${key}`, body, named);
    if (reply.error) throw new Error(`put ${key}: ${reply.error.description}`);
  }

  // 2. Pull: each slot asks for one release, so that nothing waits here that another worker could start.
  async work() {
    for (const over of ["main.end", "call.*.result"]) {
      this.nc.subscribe(`${this.prefix}.run.*.${over}`, { callback: (_, m) => this.hear(m.subject) });
    }
    await Promise.all(Array.from({ length: this.slots }, () => this.slot()));
  }

  async slot() {
    while (!this.nc.isClosed()) {
      try {
        const msg = await this.pull();
        if (msg?.reply) await this.settle(msg); // else a status: nothing to do now
      } catch (error) { // no server, or something of ours: what is unsettled is delivered again
        if (error.code !== "TIMEOUT") console.error(String(error));
        await sleep(100);
      }
    }
  }

  // pull asks for one release. It comes in under its own subject, so it needs an inbox of its own.
  async pull() {
    const inbox = createInbox();
    const sub = this.nc.subscribe(inbox, { max: 1, timeout: 6_000 });
    const next = `$JS.API.CONSUMER.MSG.NEXT.${this.runs}.pool-${this.pool}`;
    this.nc.publish(next, JSON.stringify({ batch: 1, expires: 5e9 }), { reply: inbox });
    for await (const msg of sub) return msg;
  }

  // settle handles a delivery and says what becomes of it: a pause in ms until it comes again, or nothing when it is done.
  async settle(msg) {
    const busy = setInterval(() => msg.respond("+WPI"), this.progress);
    try {
      const pause = await this.released(msg);
      msg.respond(pause === undefined ? "+ACK" : `-NAK {"delay":${Math.ceil(pause * 1e6)}}`);
    } finally {
      clearInterval(busy);
    }
  }

  // hear: what somebody says proves nothing, so the fact is read before a call is cancelled.
  async hear(subject) {
    const [run, , place] = subject.slice(`${this.prefix}.run.`.length).split(".");
    for (const [call, abort] of this.running) {
      const about = subject.endsWith(".main.end") ? call.startsWith(`${run}=`) : call === `${run}=${place}`;
      if (about && await this.read({ last_by_subj: subject }).catch(() => null)) abort.abort(new Error("cancelled"));
    }
  }

  // 3. Check: a release runs only when a gate has signed exactly these bytes for exactly this subject.
  async released(msg) {
    const { seq, stored, delivered } = delivery(msg.reply);
    const call = place(msg.subject);
    const chain = `${this.prefix}.run.${call.run}.call.${call.call}`;
    const release = { chain, call, seq, stored, kind: "go", event: genuine(msg, this.gateKeys) };
    const rel = release.event?.data;
    const host = this.hosts.get(rel?.toolId);
    if (rel && (!host || host.manifest.version !== rel.toolVersion || host.manifest.inputSchemaDigest !== rel.inputSchemaDigest)) {
      const head = await this.read({ last_by_subj: `${release.chain}.>` }); // another host may have it, if the call has not gone on
      return head && head.seq > seq && head.kind !== "claim" ? undefined : 1_000;
    }
    if (!rel || !this.holds(release, rel, host)) return this.block(release, "fingerprint_mismatch", seq);
    return this.goOn(release, host, delivered === 1 ? release : await this.read({ last_by_subj: `${release.chain}.>` }));
  }

  holds({ call }, rel, host) {
    const fingerprint = sha256([
      "weir.fp.v1", rel.namespace, rel.runId, rel.toolCallId, rel.round, rel.toolId, rel.toolVersion, rel.inputSchemaDigest, rel.args,
    ].join("\0"));
    return rel.namespace === this.namespace && rel.runId === call.run && rel.toolCallId === `${call.run}=${call.call}` &&
      rel.pool === this.pool && call.pool === token(rel.pool) && call.tool === token(rel.toolId) &&
      rel.fingerprint === `sha256:${fingerprint}` && host.fits(JSON.parse(rel.args));
  }

  // goOn does what the last fact of the call asks for. Whoever loses an append reads what won, and goes on from there.
  async goOn(release, host, head) {
    for (;;) {
      if (!head) return undefined; // aged out: the run is long over
      if (head.seq < release.seq) return 500; // the leader does not show the release yet
      if (!head.event) return this.block(release, "tampering", head.seq);
      if (head.seq !== release.seq && (head.kind !== "claim" || head.event.data.goSeq !== release.seq)) return undefined;
      const { time, data } = release.event;
      const late = Date.parse(data.startBy) - Date.parse(time) + release.stored < Date.now();
      if (late && head.kind !== "claim") return 1_000; // the gate ends it
      const step = head.kind === "claim" ? await this.claimed(release, head, host) : await this.claim(release, head, host, data.attempt ?? 0);
      if (!step.lost) return step.pause;
      head = step.lost;
    }
  }

  // claimed: while its worker may live, a claim is respected. After that a call that may be repeated is claimed again, and
  // one with effects is for people: nobody knows whether they happened.
  async claimed(release, head, host) {
    const claim = head.event.data;
    const left = head.stored + this.lease - Date.now();
    if (left > 0) return { pause: left + 100 };
    if (claim.worker === this.id ? this.running.has(claim.toolCallId) : await this.lives(claim.worker)) return { pause: this.lease / 2 };
    if (!repeatable(host.manifest)) {
      const at = new Date(head.stored).toISOString();
      return this.finish(release, head, claim, "suspend", { reason: "in_doubt", since: at, claim: { by: claim.worker, at, attempt: claim.attempt } });
    }
    if (claim.attempt < (host.manifest.maxAttempts ?? 5)) return this.claim(release, head, host, claim.attempt);
    const error = { name: "delivery_exhausted", message: `the call was started ${claim.attempt} times and never ended` };
    return this.finish(release, head, claim, "result", { outcome: "error", started: true, error });
  }

  async lives(worker) { // a worker of whom nobody can tell is not gone: then read throws, and the delivery comes again
    const entry = await this.read({ last_by_subj: `$KV.${this.registry}.live.tool-executor.${token(worker)}` }, `KV_${this.registry}`);
    return entry !== null && !/^KV-Operation:|^Nats-Marker-Reason:/im.test(entry.headers);
  }

  // 4. Claim: a start is a fact, and it is stored before anything starts.
  async claim(release, head, host, attempts) {
    const { toolCallId, runId, round } = release.event.data;
    if (this.running.has(toolCallId)) return { pause: this.lease / 2 }; // another delivery to this process is at it
    const abort = new AbortController();
    this.running.set(toolCallId, abort);
    try {
      const data = {
        toolCallId, runId, round, attempt: attempts + 1, goSeq: release.seq, worker: this.id,
        leaseUntil: new Date(Date.now() + this.lease).toISOString(),
      };
      const done = await this.append(release, "claim", "call.claimed", JSON.stringify(data), head.seq);
      if (done.outcome === "lost") return { lost: done.last };
      if (done.outcome === "gone") return {};
      const { kind, outcome } = await this.run(release, host, data.attempt, abort.signal);
      return await this.finish(release, done.last, data, kind, outcome);
    } finally {
      this.running.delete(toolCallId);
    }
  }

  // 5. Run, with exactly the released arguments, and say what came of it.
  async run(release, host, attempt, cancelled) {
    const { args, toolCallId, resume } = release.event.data;
    const began = Date.now();
    const signal = AbortSignal.any([cancelled, AbortSignal.timeout(milliseconds(host.manifest.timeout))]);
    const ended = new Promise((_, reject) => { signal.onabort = () => reject(signal.reason); });
    const active = () => `${Date.now() - began}ms`;
    try {
      const result = await Promise.race([host.run(JSON.parse(args), { toolCallId, attempt, resume, signal }), ended]);
      return { kind: "result", outcome: { outcome: "ok", started: true, result: result ?? null, active: active() } };
    } catch (error) {
      if (error instanceof Suspension) return { kind: "suspend", outcome: { reason: "suspended", suspendPayload: error.payload } };
      const name = signal.aborted ? (cancelled.aborted ? "cancelled" : "timeout") : error.name;
      return { kind: "result", outcome: { outcome: "error", started: true, error: { name, message: String(error.message) }, active: active() } };
    }
  }

  async finish(release, claim, { attempt }, kind, outcome) {
    const rel = release.event.data;
    const data = { toolCallId: rel.toolCallId, runId: rel.runId, round: rel.round, attempt, worker: this.id, ...outcome };
    if (kind === "result") Object.assign(data, { toolName: rel.toolName, claimSeq: claim.seq, grantId: rel.allowedBy.grant ?? undefined });
    let text = JSON.stringify(data);
    if (kind === "result" && rel.round > 0) text = `${text.slice(0, -1)},"args":${rel.args}}`; // every digit as it was
    if (text.length > this.nc.info.max_payload - 8_192 && data.result !== undefined) {
      const error = { name: "too_large", message: "the tool ran, but its result is too large to be stored" };
      return this.finish(release, claim, { attempt }, kind, { outcome: "error", started: true, error });
    }
    const done = await this.append(release, kind, kind === "result" ? "call.finished" : "call.suspended", text, claim.seq);
    if (done.outcome === "stored" || outcome.reason === "in_doubt") return {};
    await this.late(release, { ...data, claimSeq: claim.seq, started: true });
    return done.last?.kind === "claim" ? { pause: this.lease / 2 } : {}; // that worker may die too
  }

  // late keeps an outcome that has lost its place: evidence for people, never state.
  late(release, data) {
    const id = uuid7();
    const subject = `${this.prefix}.run.${release.call.run}.late.${release.call.call}.${id}`;
    return this.appendAt(subject, subject, this.envelope(release, "outcome.delayed", JSON.stringify(data), id), 0);
  }

  async block(release, reason, foreign) {
    const { run, call } = release.call;
    const rel = release.event?.data;
    const error = { name: reason, message: "the call was not released for these arguments" };
    const data = { toolCallId: `${run}=${call}`, runId: run, toolName: rel?.toolName ?? "", round: rel?.round ?? 0, outcome: "blocked", started: false, reason, foreign, error };
    await this.append(release, "result", "call.finished", JSON.stringify(data), foreign);
    return undefined;
  }

  append(release, kind, type, text, after) {
    return this.appendAt(`${release.chain}.${kind}`, `${release.chain}.>`, this.envelope(release, type, text), after);
  }

  envelope({ call, event }, type, text, id = uuid7()) {
    const named = {
      specversion: "1.0", id, source: `/weir/${this.namespace}/js-worker`, type: `dev.weirkeeper.${type}.v1`, subject: call.run,
      time: new Date().toISOString(), partitionkey: call.run, correlationid: call.run.split("=")[0], causationid: event?.id,
      traceparent: event?.traceparent, datacontenttype: "application/json",
    };
    return { id, source: named.source, body: `${JSON.stringify(named).slice(0, -1)},"data":${text}}` };
  }

  // appendAt publishes until the outcome is known: stored, lost (with the fact that is last now), or gone. Every try carries
  // the guard, so at most one of them is stored. After a refusal or silence only the log knows.
  async appendAt(subject, chain, event, after) {
    const named = {
      "content-type": "application/cloudevents+json",
      "Nats-Expected-Last-Subject-Sequence": String(after), "Nats-Expected-Last-Subject-Sequence-Subject": chain,
    };
    const stored = (seq) => ({ outcome: "stored", last: { seq, kind: kindOf(subject), event: JSON.parse(event.body), stored: Date.now() } });
    const ingest = subject.replace(`${this.prefix}.run.`, `${this.prefix}.put.run.`);
    for (let emptySince = 0; ; await sleep(1 + Math.random() * 50)) {
      const reply = await this.request(ingest, event.body, named).catch(() => ({ error: {} })); // silence
      if (reply.seq) return stored(reply.seq);
      const code = reply.error.err_code;
      if (code === 10164) continue; // another append of this chain is under way
      if (code && code !== 10071) throw new Error(`append ${subject}: ${reply.error.description}`);
      const last = await this.read({ last_by_subj: chain }).catch(() => undefined);
      if (last === null && after > 0 && code === 10071) {
        emptySince ||= Date.now();
        if (Date.now() - emptySince > 5_000) return { outcome: "gone" };
      }
      if (!last || last.seq <= after) continue; // a stale read, or it did not arrive
      const next = await this.read({ next_by_subj: chain, seq: after + 1 }).catch(() => undefined);
      if (next) return sameEvent(next, event) ? stored(next.seq) : { outcome: "lost", last };
    }
  }

  // read asks the leader for a message: null when there is none. What is no event has none.
  async read(which, stream = this.runs) {
    const { message: m, error } = await this.request(`$JS.API.STREAM.MSG.GET.${stream}`, JSON.stringify(which));
    if (error?.err_code === 10037) return null;
    if (error) throw new Error(`read ${stream}: ${error.description}`);
    const text = (base64) => Buffer.from(base64 ?? "", "base64").toString();
    return { seq: m.seq, kind: kindOf(m.subject), stored: Date.parse(m.time), headers: text(m.hdrs), event: parse(text(m.data)) };
  }

  async request(subject, body, named = {}) {
    const headers = natsHeaders();
    for (const [name, value] of Object.entries(named)) headers.set(name, value);
    return JSON.parse((await this.nc.request(subject, body, { headers, timeout: 2_000 })).string());
  }
}

// genuine is the event of a release that a gate has signed: domain, stored subject and payload, exactly as received.
function genuine(msg, keys) {
  const key = keys.get(msg.headers?.get("weir-key"));
  const signed = Buffer.concat([Buffer.from(`weir.go.v1\0${msg.subject}\0`), msg.data]);
  const signature = Buffer.from(msg.headers?.get("weir-sig") ?? "", "base64url");
  return key && verify(null, signed, key, signature) ? parse(msg.string()) : undefined;
}

// publicKey is the key of an nkey: base32 of a prefix byte, the key and a checksum.
function publicKey(text) {
  const bits = [...text].map((c) => "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567".indexOf(c).toString(2).padStart(5, "0")).join("");
  const raw = Buffer.from(bits.match(/.{8}/g).slice(1, 33).map((b) => parseInt(b, 2)));
  return createPublicKey({ key: Buffer.concat([Buffer.from("302a300506032b6570032100", "hex"), raw]), format: "der", type: "spki" });
}

// canonical: keys in order; JavaScript writes everything else as RFC 8785 wants it.
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.keys(value).sort().map((k) => `${JSON.stringify(k)}:${canonical(value[k])}`).join(",")}}`;
}

// token is an id as it stands in a subject or key.
function token(id) {
  if (/^[A-Za-z0-9_-]{1,64}$/.test(id)) return id;
  const base32 = (bytes) => ([...bytes].map((b) => b.toString(2).padStart(8, "0")).join("").match(/.{1,5}/g) ?? [])
    .map((five) => "abcdefghijklmnopqrstuvwxyz234567"[parseInt(five.padEnd(5, "0"), 2)]).join("");
  const whole = `=b${base32(Buffer.from(id))}`;
  return whole.length <= 64 ? whole : `=h${base32(Buffer.from(sha256(id), "hex"))}`;
}

// weir.<ns>.run.<run>.call.<c>.<kind>, and of a release .<pool>.<tool>
const kindOf = (subject) => subject.split(".")[6] ?? "";
const place = (subject) => (([, , , run, , call, , pool, tool]) => ({ run, call, pool, tool }))(subject.split("."));

// delivery reads $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<sequence>.<consumer's>.<time in ns>.…
function delivery(reply) {
  const tokens = reply.split(".");
  const [delivered, seq, , nanos] = tokens.slice(tokens.length > 9 ? 6 : 4).map(Number);
  return { delivered, seq, stored: nanos / 1e6 };
}

function milliseconds(duration) {
  return [...duration.matchAll(/([\d.]+)(ms|[smh])/g)].reduce((sum, [, n, u]) => sum + n * { ms: 1, s: 1e3, m: 6e4, h: 36e5 }[u], 0);
}

function uuid7() {
  const b = randomBytes(16);
  b.writeUIntBE(Date.now(), 0, 6);
  [b[6], b[8]] = [0x70 | (b[6] & 0x0f), 0x80 | (b[8] & 0x3f)];
  return b.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
