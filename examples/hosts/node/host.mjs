// A host in Node: `node host.mjs bot.mjs --name bot --slots 2` serves the target that bot.mjs exports.
// It does all that docs/hosts.md says. A target must not block Node's thread for seconds.
import { randomBytes, randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import amqp from "amqplib";

const VERSION = 4, BEAT_MS = 1_000, LOST_BEATS = 9, GRACE_MS = 30_000, QUEUE_MS = 600_000;
const MAX_KEPT_ITEMS = 10_000, MAX_KEPT_BYTES = 64e6, MAX_ITEM_BYTES = 8 * 2 ** 20;

const flags = { name: { type: "string" }, slots: { type: "string", default: "1" } };
const { values: options, positionals } = parseArgs({ allowPositionals: true, options: flags });
const { default: Target } = await import(pathToFileURL(resolve(positionals[0])).href);
const QUEUE = `quintain.host.${options.name}`, HOST_ID = `${hostname()}-${process.pid}`;

let channel, isStopping = false;
const leases = new Map(); // by id
const freeSlots = new Set(); // the tags of their consumers

class Lease {
  said = 0; // the number of the last item of the host
  processed = 0; // that of the last item of the driver that was processed
  kept = []; // the items that the driver has not processed
  keptBytes = 0;
  blocked = []; // who waits until fewer are kept
  requests = Promise.resolve(); // they are carried out one after another
  pending = new Set(); // those that have no result yet
  events = new Map(); // those of the run that wait for a response, by number
  silentBeats = 0;
  hasAsked = false; // for what was lost, since the last beat

  constructor({ correlationId, replyTo }) {
    const random = randomBytes(24).toString("base64url");
    Object.assign(this, { id: correlationId, replyTo, key: `lease/${random}`, queue: `quintain.lease.${random}` });
  }

  async start(message) {
    await this.listen();
    await new Promise((confirmed) => this.say({ type: "offered", hostId: HOST_ID }, confirmed));
    if (this.isReturned) return this.end(); // the driver has gone
    this.timer = setInterval(() => this.beat(), BEAT_MS);
    this.receive(message);
  }

  async listen() {
    const ch = channel;
    await ch.assertQueue(this.queue, { arguments: { "x-expires": QUEUE_MS } });
    await ch.bindQueue(this.queue, "quintain.host", this.key);
    ch.prefetch(64);
    await ch.consume(this.queue, (delivery) => {
      if (delivery) ch.ack(delivery);
      const { type, correlationId, replyTo } = delivery?.properties ?? {};
      const message = type === "lease" && correlationId === this.id && parse(delivery);
      if (message) this.receive(message, replyTo);
    });
  }

  beat() {
    this.hasAsked = false;
    this.publish([]);
    if (++this.silentBeats > LOST_BEATS) this.end();
  }

  // What cannot be published is asked for again later.
  publish(items, again = false, confirmed = () => {}) {
    const number = items.length ? items[0].number : this.said + 1;
    const texts = items.map((item) => item.text);
    const body = `{"number":${number},"processed":${this.processed},"again":${again},"items":[${texts}]}`;
    publish(this.replyTo, body, { type: "lease", correlationId: this.id, replyTo: this.key }, confirmed);
  }

  publishKept() {
    for (const item of this.kept) this.publish([item]);
  }

  say(item, confirmed) {
    const text = JSON.stringify(item), bytes = Buffer.byteLength(text);
    this.kept.push({ number: ++this.said, text, bytes });
    this.keptBytes += bytes;
    this.publish(this.kept.slice(-1), false, confirmed);
    return this.said;
  }

  receive({ number, processed, again, items = [] }, replyTo = this.replyTo) {
    this.replyTo = replyTo;
    this.silentBeats = 0;
    while (this.kept[0]?.number <= processed) this.keptBytes -= this.kept.shift().bytes;
    if (this.hasRoom()) for (const wake of this.blocked.splice(0)) wake();
    const known = this.processed + 1 - number;
    if (known >= 0) for (const item of items.slice(known)) this.receiveItem(++this.processed, item);
    else if (!this.hasAsked) this.publish([], (this.hasAsked = true)); // some were lost
    if (again) this.publishKept();
  }

  hasRoom() {
    return this.kept.length < MAX_KEPT_ITEMS && this.keptBytes < MAX_KEPT_BYTES;
  }

  receiveItem(number, item) {
    if (item.type === "reply") return this.respond(item);
    this.pending.add(number);
    if (item.type === "teardown") return this.end(number, item.reset);
    const carryOut = async () => {
      if (item.type === "run") return this.startRun(number, item.events);
      const isDone = await this.answer(number, () => this.operations[item.type](item));
      if (item.type === "open" && !isDone) this.end();
    };
    this.requests = this.requests.then(carryOut);
  }

  operations = {
    __proto__: null,
    open: () => this.describe((this.target = new Target())),
    describe: () => this.describe(this.target),
    set_config: async ({ values, described }) => {
      for (const [name, value] of Object.entries(values)) await this.target.setConfig(name, value);
      return described && this.describe(this.target);
    },
    query: async ({ name, params }) => ({ value: `${await this.target.query(name, params ?? {})}` }),
    cancel: ({ to }) => this.run?.number === to && this.run.cancel(),
    reset: () => this.target.reset(),
  };

  describe = (target) => ({ descriptor: { targetClass: Target.name, ...target.describe() } });

  // Says the one result of a request, unless the teardown has; returns whether it is no failure.
  async answer(number, operation) {
    let result;
    try {
      result = { ...(await operation()) };
      requireSize(result);
    } catch (error) {
      const { name = "Error", message = error, stack = "", token } = error ?? {};
      result = { failure: { type: name, message: `${message}`.slice(0, 1e5), traceback: stack.slice(0, 1e4), token } };
    }
    if (this.pending.delete(number)) this.say({ type: "result", to: number, ...result });
    return !result.failure;
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
    await channel.waitForConfirms().catch(() => {});
    clearInterval(this.timer);
    await channel.deleteQueue(this.queue).catch(() => {}); // without a connection it expires
    leases.delete(this.id);
    await waitForLease().catch(() => {}); // or after the reconnect
  }

  async startRun(number, kinds) {
    await this.run?.cancel();
    const abort = new AbortController();
    let isOver = false;
    const tell = async (type, { content, ...event }) => {
      while (!isOver && !this.hasRoom()) await new Promise((wake) => this.blocked.push(wake));
      if (isOver) throw new Error("The run is over");
      if (!kinds.includes(event.kind)) throw new TypeError(`The driver cannot read a ${event.kind}`);
      const head = { eventId: randomUUID(), at: Date.now() / 1000, domain: (event.controllable ?? event.observable).domain };
      return this.say({ type, event: requireSize({ ...head, ...event, content: JSON.stringify(content) }) });
    };
    const emit = async (event) => void (await tell("emit", event));
    const sendEvent = async (event) => {
      const sent = await tell("send", event);
      return new Promise((resolve, reject) => this.events.set(sent, { resolve, reject }));
    };
    const cancelled = new Promise((_, reject) => {
      abort.signal.addEventListener("abort", () => reject(new Error("The run was cancelled")));
    });
    const answered = this.answer(number, async () => {
      try {
        await Promise.race([this.target.run(emit, sendEvent, abort.signal), cancelled]);
      } finally {
        isOver = true;
        this.events.clear();
      }
    });
    this.run = { number, cancel: () => (isOver || abort.abort(), answered) };
  }

  respond({ to, response }) {
    const event = this.events.get(to), failure = response?.failure;
    this.events.delete(to);
    if (!failure) event?.resolve(response);
    else event?.reject(Object.assign(new Error(failure.message), { name: failure.type, token: failure.token }));
  }
}

function requireSize(value) {
  const bytes = Buffer.byteLength(JSON.stringify(value));
  if (bytes > MAX_ITEM_BYTES) throw new RangeError(`${bytes} bytes are too many: ${MAX_ITEM_BYTES} are the limit`);
  return value;
}

function parse({ content }) {
  try {
    const message = JSON.parse(content);
    const isMessage = Number.isInteger(message.number) && Array.isArray(message.items ?? []);
    return isMessage && message.items?.every((item) => typeof item?.type === "string") !== false && message;
  } catch {
    return false;
  }
}

function publish(key, body, properties, confirmed) {
  try {
    channel.publish("quintain.reply", key, Buffer.from(body), { ...properties, mandatory: true }, confirmed);
  } catch (error) {
    confirmed?.(error); // there is no connection
  }
}

// A free slot waits for one request.
async function waitForLease() {
  const ch = channel, consumerTag = randomUUID();
  if (isStopping) return;
  freeSlots.add(consumerTag);
  ch.prefetch(1);
  await ch.consume(QUEUE, (delivery) => delivery && takeRequest(ch, consumerTag, delivery), { consumerTag });
}

async function takeRequest(ch, consumerTag, delivery) {
  const { type, correlationId, replyTo } = delivery.properties, message = parse(delivery);
  const version = message && message.items?.[0]?.version;
  if (leases.has(correlationId)) return ch.ack(delivery); // it came before, and was not acknowledged
  if (type !== "lease" || !replyTo || version !== VERSION) {
    const error = `version: this host speaks version ${VERSION} of hosting, the driver ${version}`;
    const body = JSON.stringify({ code: "bad_request", status: 400, error });
    if (type === "lease" && replyTo) publish(replyTo, body, { type: "fault", correlationId });
    return ch.ack(delivery);
  }
  const lease = new Lease(delivery.properties);
  leases.set(lease.id, lease);
  freeSlots.delete(consumerTag);
  try {
    await ch.cancel(consumerTag);
    await lease.start(message);
  } catch (error) {
    console.error("A lease could not be given:", error);
    await lease.end();
  }
  ch.ack(delivery);
}

async function setUp(connection) {
  channel = await connection.createConfirmChannel();
  channel.on("error", () => connection.close());
  channel.on("return", ({ properties: { correlationId } }) => {
    if (leases.has(correlationId)) leases.get(correlationId).isReturned = true;
  });
  for (const exchange of ["quintain.host", "quintain.reply"]) await channel.assertExchange(exchange, "direct");
  await channel.assertQueue(QUEUE, { arguments: { "x-queue-type": "quorum" } });
  await channel.bindQueue(QUEUE, "quintain.host", options.name);
  freeSlots.clear();
  for (const lease of leases.values()) {
    await lease.listen();
    lease.publish([], true);
    lease.publishKept();
  }
  while (leases.size + freeSlots.size < options.slots) await waitForLease();
}

process.on("unhandledRejection", (error) => console.error("Not handled:", error));
const connection = await amqp.connect(process.env.QUINTAIN_BROKER_URL, { recovery: { setup: setUp, maxDelay: 1_000 } });
connection.on("error", (error) => console.error(error.message));
process.on("SIGTERM", async () => {
  isStopping = true;
  for (const tag of freeSlots) await channel.cancel(tag).catch(() => {});
  for (const ends = Date.now() + GRACE_MS; leases.size && Date.now() < ends; ) await sleep(50);
  await Promise.all([...leases.values()].map((lease) => lease.end()));
  await connection.close();
  process.exit();
});
console.error(`Serving ${options.name} with ${options.slots} slots`);
