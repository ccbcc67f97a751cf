// The core of a host in Node: `node host.mjs bot.mjs bot 2` serves, in two slots, the target that bot.mjs exports.
// reconnecting.mjs is the same host with what docs/protocol/hosts.md says of reconnects. A target must not block Node's thread.
import { randomBytes, randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import amqp from "amqplib";

const VERSION = 4, BEAT_MS = 1_000, LOST_BEATS = 9, GRACE_MS = 30_000, POLL_MS = 20;
const MAX_KEPT_ITEMS = 10_000, MAX_KEPT_BYTES = 64e6, MAX_ITEM_BYTES = 8 * 2 ** 20;

const [, program, file, name, slots = 1] = process.argv;
const { default: Target } = await import(new URL(file, `file://${process.cwd()}/`));
const QUEUE = `quintain.host.${name}`, HOST_ID = `${hostname()}-${process.pid}`;

export let channel;
export const leases = new Map(); // by id
export const freeSlots = new Set(); // the tags of their consumers
let LeaseType, isStopping = false;

export class Lease {
  queueOptions = { exclusive: true };
  said = 0; // the number of the last item of the host
  processed = 0; // that of the last item of the driver
  kept = []; // the items that the driver has not processed
  keptBytes = 0;
  silentBeats = 0;
  requests = Promise.resolve(); // they are carried out one after another
  pending = new Set(); // the numbers of those that have no result yet
  random = randomBytes(24).toString("base64url");

  constructor({ correlationId, replyTo }) {
    Object.assign(this, { id: correlationId, replyTo, key: `lease/${this.random}`, queue: `quintain.lease.${this.random}` });
  }

  async start(request) {
    this.timer = setInterval(() => (++this.silentBeats > LOST_BEATS ? this.end() : this.publish([])), BEAT_MS);
    await this.listen();
    this.say({ type: "offered", hostId: HOST_ID });
    await channel.waitForConfirms();
    if (!this.isEnding) this.receive(request, this.replyTo);
  }

  async listen() {
    await channel.assertQueue(this.queue, this.queueOptions);
    await channel.bindQueue(this.queue, "quintain.host", this.key);
    await consume(this.queue, (message, { correlationId, replyTo }) => {
      if (correlationId === this.id) this.receive(message, replyTo);
    });
  }

  // A message found nobody: the driver has gone.
  returned() {
    this.end();
  }

  publish(items, again = false) {
    const number = items[0]?.number ?? this.said + 1, texts = items.map((item) => item.text);
    const body = `{"number":${number},"processed":${this.processed},"again":${again},"items":[${texts}]}`;
    send(this.replyTo, body, { type: "lease", correlationId: this.id, replyTo: this.key });
  }

  say(item) {
    const text = JSON.stringify(item), bytes = Buffer.byteLength(text);
    if (bytes > MAX_ITEM_BYTES) throw new RangeError(`${bytes} bytes are too many: ${MAX_ITEM_BYTES} are the limit`);
    this.kept.push({ number: ++this.said, text, bytes });
    this.keptBytes += bytes;
    this.publish(this.kept.slice(-1));
    return this.said;
  }

  receive({ processed, items = [] }, replyTo) {
    Object.assign(this, { replyTo, silentBeats: 0 });
    while (this.kept[0]?.number <= processed) this.keptBytes -= this.kept.shift().bytes;
    for (const item of items) this.receiveItem(++this.processed, item);
  }

  receiveItem(number, item) {
    if (item.type === "reply") return this.run?.events.get(item.to)?.(item.response);
    this.pending.add(number);
    if (item.type === "teardown") return this.end(number, item.reset);
    const { [item.type]: operation } = this.operations;
    const carryOut = () => (item.type === "run" ? this.startRun(number, item) : this.answer(number, () => operation(item)));
    this.requests = this.requests.then(carryOut).then(() => this.target || this.end());
  }

  describe = () => ({ descriptor: { targetClass: Target.name, ...this.target.describe() } });
  operations = {
    __proto__: null,
    open: () => (this.target = new Target()) && this.describe(),
    describe: () => this.describe(),
    set_config: async ({ values }) => {
      for (const [name, value] of Object.entries(values)) await this.target.setConfig(name, value);
    },
    query: async ({ name, params = {} }) => ({ value: `${await this.target.query(name, params)}` }),
    cancel: async ({ to }) => void (this.run?.number === to && (await this.run.cancel())),
    reset: () => this.target.reset(),
  };

  // Says the one result of a request, unless the teardown has.
  async answer(number, operation) {
    const say = (more) => this.pending.has(number) && this.say({ type: "result", to: number, ...more });
    const toFailure = ({ name = "Error", message, token }) => ({ type: name, message: `${message}`.slice(0, 1e5), token });
    await (async () => say(await operation()))().catch((error) => say({ failure: toFailure(error ?? {}) }));
    this.pending.delete(number);
  }

  // Ends the lease: at the request with this number, or because its driver is lost or the host stops.
  async end(number, reset = !number) {
    if (this.isEnding) return;
    this.isEnding = true;
    await this.run?.cancel();
    const refuse = () => Promise.reject(new Error("The instance is torn down"));
    for (const other of this.pending) if (other !== number) await this.answer(other, refuse);
    if (reset) await this.answer(0, () => this.target?.reset());
    await this.answer(number, () => this.target?.teardown());
    clearInterval(this.timer);
    for (const step of ["waitForConfirms", "deleteQueue"]) await channel[step](this.queue).catch(() => {});
    leases.delete(this.id);
    await waitForLease();
  }

  async startRun(number, { events: kinds }) {
    await this.run?.cancel();
    const events = new Map(), abort = new AbortController(), { signal } = abort;
    let isOver = false;
    const tell = (type) => async ({ content, ...event }) => {
      const hasRoom = () => this.kept.length < MAX_KEPT_ITEMS && this.keptBytes < MAX_KEPT_BYTES;
      while (!isOver && !hasRoom()) await sleep(POLL_MS);
      if (isOver) throw new Error("The run is over");
      if (!kinds.includes(event.kind)) throw new TypeError(`The driver cannot read a ${event.kind}`);
      const head = { eventId: randomUUID(), at: Date.now() / 1000, domain: (event.controllable ?? event.observable).domain };
      const sent = this.say({ type, event: { ...head, ...event, content: JSON.stringify(content) } });
      if (type === "emit") return;
      const { failure, ...response } = await new Promise((respond) => events.set(sent, respond));
      if (!failure) return response;
      throw Object.assign(new Error(failure.message), { name: failure.type, token: failure.token });
    };
    const cancelled = new Promise((_, reject) => {
      signal.addEventListener("abort", () => reject(new Error("The run was cancelled")));
    });
    const run = async () => void (await this.target.run(tell("emit"), tell("send"), signal));
    const answered = this.answer(number, () => Promise.race([run(), cancelled]).finally(() => (isOver = true)));
    this.run = { number, events, cancel: () => (isOver || abort.abort(), answered) };
  }
}

// Passes on what can be read of a queue, and acknowledges everything.
async function consume(queue, onMessage, consumerOptions) {
  const ch = channel;
  const receive = async ({ content, properties }) => {
    const message = JSON.parse(content);
    if (properties.type === "lease" && properties.replyTo && message.number) await onMessage(message, properties);
  };
  const log = (error) => console.error("A message was dropped:", error);
  await ch.consume(queue, (each) => each && receive(each).catch(log).then(() => ch.ack(each)), consumerOptions);
}

function send(key, body, properties) {
  channel.publish("quintain.reply", key, Buffer.from(body), { ...properties, mandatory: true });
}

// A free slot waits for one request.
async function waitForLease() {
  if (isStopping) return;
  const consumerTag = randomUUID();
  freeSlots.add(consumerTag);
  await consume(QUEUE, (request, properties) => takeRequest(consumerTag, request, properties), { consumerTag });
}

async function takeRequest(consumerTag, request, properties) {
  const { correlationId, replyTo } = properties, version = request.items?.[0]?.version;
  const error = `version: this host speaks version ${VERSION} of hosting, the driver ${version}`;
  const fault = JSON.stringify({ code: "bad_request", status: 400, error });
  if (version !== VERSION) return send(replyTo, fault, { type: "fault", correlationId });
  if (leases.has(correlationId)) return; // it came before, and was not acknowledged
  freeSlots.delete(consumerTag);
  const lease = new LeaseType(properties);
  leases.set(lease.id, lease);
  await channel.cancel(consumerTag);
  await lease.start(request);
}

export async function setUp(connection, NewLease) {
  LeaseType = NewLease;
  channel = await connection.createConfirmChannel();
  channel.on("return", ({ properties }) => leases.get(properties.correlationId)?.returned());
  for (const exchange of ["quintain.host", "quintain.reply"]) await channel.assertExchange(exchange, "direct");
  await channel.assertQueue(QUEUE, { arguments: { "x-queue-type": "quorum" } });
  await channel.bindQueue(QUEUE, "quintain.host", name);
  await channel.prefetch(1);
  while (leases.size + freeSlots.size < slots) await waitForLease();
}

process.on("unhandledRejection", (error) => console.error("Not handled:", error));
process.on("SIGTERM", async () => {
  isStopping = true;
  for (const tag of freeSlots) await channel.cancel(tag).catch(() => {});
  for (const ends = Date.now() + GRACE_MS; leases.size && Date.now() < ends; ) await sleep(POLL_MS);
  await Promise.all([...leases.values()].map((lease) => lease.end()));
  process.exit();
});

if (program.endsWith("/host.mjs")) {
  const connection = await amqp.connect(process.env.QUINTAIN_BROKER_URL);
  connection.on("error", ({ message }) => console.error(message));
  connection.on("close", () => process.exit(1)); // all leases end with it
  await setUp(connection, Lease);
}
