"""Floods of a user of the broker who has no session: ``messages`` without a token, or what it ``declares`` for itself.

It is a program of its own, because it would take time of the process that measures.
"""

from __future__ import annotations

import contextlib
import json
import sys

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError

MIB = 1024 * 1024
MESSAGE_BYTES = 15 * MIB
KINDS = ("classic", "quorum", "stream")

#: RabbitMQ's reply code.
_ACCESS_REFUSED = 403


def messages(url: str, count: str, *places: str) -> int:
    """Publish large messages to ``EXCHANGE/KEY`` in turn; returns how many the broker took."""
    properties = pika.BasicProperties(reply_to="gone", correlation_id="c", delivery_mode=2)
    taken = 0
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(int(count)):
            exchange, key = places[number % len(places)].split("/")
            with contextlib.suppress(NackError):
                channel.basic_publish(exchange, key, b"x" * MESSAGE_BYTES, properties)
                taken += 1
    return taken


def declares(url: str, count: str, headers: str, *names: str) -> dict[str, list[int]]:
    """Declare a queue of each type for each name, and an exchange for each; publish to them; returns what was taken.

    So many messages of a MiB are sent to each queue until one is refused, then messages of headers alone.
    """
    taken: dict[str, list[int]] = {}
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        for name in names:
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
                    _publish(channel, queue, int(count), b"x" * MIB, None),
                    _publish(channel, queue, int(headers), b"", {"filler": "x" * 12_000}),
                ]
                channel.close()
    return taken


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
    print(json.dumps({"messages": messages, "declares": declares}[sys.argv[1]](*sys.argv[2:])))
