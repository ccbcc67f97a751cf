"""Fills exchanges and queues of a user's own, without a session, as any user of the broker may.

It is a program of its own, because it would take time of the process that measures.
"""

from __future__ import annotations

import argparse
import json

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError

MIB = 1024 * 1024

KINDS = ("classic", "quorum", "stream")

#: RabbitMQ's reply codes.
_ACCESS_REFUSED = 403


def main() -> None:
    """Declare a queue of each type for each name, and an exchange for each; publish to them; print what was taken.

    ``count`` messages of a MiB are sent to each queue until one is refused, then messages of headers alone.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("count", type=int)
    parser.add_argument("headers", type=int)
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    taken: dict[str, list[int]] = {}
    parameters = pika.URLParameters(options.url)
    with pika.BlockingConnection(parameters) as connection:
        for name in options.names:
            for kind in KINDS:
                channel = connection.channel()
                channel.confirm_delivery()
                queue = f"{name}.{kind}"
                try:
                    _open(channel, queue, kind)
                except ChannelClosedByBroker as closed:
                    if closed.reply_code != _ACCESS_REFUSED:
                        raise
                    continue
                taken[queue] = [
                    _publish(channel, queue, options.count, b"x" * MIB, None),
                    _publish(channel, queue, options.headers, b"", {"filler": "x" * 12_000}),
                ]
                channel.close()
    print(json.dumps(taken))


def _open(channel: BlockingChannel, queue: str, kind: str) -> None:
    """Declare a queue, and an exchange of the same name that leads there."""
    channel.exchange_declare(queue, "fanout", durable=True)
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    channel.queue_bind(queue, queue)


def _publish(channel: BlockingChannel, exchange: str, count: int, body: bytes, headers: dict[str, str] | None) -> int:
    """Publish until the broker refuses a message; returns how many it took."""
    properties = pika.BasicProperties(delivery_mode=2, headers=headers)
    for number in range(count):
        try:
            channel.basic_publish(exchange, "", body, properties)
        except NackError:
            return number
        except ChannelClosedByBroker as closed:
            if closed.reply_code != _ACCESS_REFUSED:
                raise
            return number
    return count


if __name__ == "__main__":
    main()
