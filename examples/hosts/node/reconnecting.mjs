// The host of host.mjs, whose leases go on when a connection is cut: `node reconnecting.mjs bot.mjs bot 2`.
import amqp from "amqplib";
import { channel, freeSlots, Lease, leases, setUp } from "./host.mjs";

const QUEUE_MS = 600_000;

class LastingLease extends Lease {
  queueOptions = { arguments: { "x-expires": QUEUE_MS } };
  hasAsked = false; // for what was lost, since the last heartbeat

  receive(message, replyTo) {
    const { number, again, items = [] } = message, known = this.processed + 1 - number;
    super.receive({ ...message, items: known >= 0 ? items.slice(known) : [] }, replyTo);
    if (known < 0 && !this.hasAsked) this.publish([], true); // some were lost
    if (again) this.publishKept();
  }

  // What cannot be published is asked for again later.
  publish(items, again = false) {
    if (!items.length) this.hasAsked = again;
    try {
      super.publish(items, again);
    } catch {} // there is no connection
  }

  publishKept() {
    for (const item of this.kept) this.publish([item]);
  }

  // A driver may reconnect, unless it has said nothing yet.
  returned() {
    if (!this.processed) this.end();
  }

  async start(request) {
    await super.start(request).catch(() => this.end());
  }

  async resume() {
    await this.listen();
    this.publish([], true);
    this.publishKept();
  }
}

async function setUpAgain(connection) {
  const before = [...leases.values()];
  freeSlots.clear();
  await setUp(connection, LastingLease);
  channel.on("error", () => connection.close());
  for (const lease of before) if (leases.has(lease.id)) await lease.resume();
}

const recovery = { setup: setUpAgain, maxDelay: 1_000 };
const connection = await amqp.connect(process.env.QUINTAIN_BROKER_URL, { recovery });
connection.on("error", ({ message }) => console.error(message));
