"""Publishes large messages without a token, as any user of the broker may.

It is a program of its own, because it would take time of the process that measures.
"""

from __future__ import annotations

import argparse
import contextlib

import pika
from pika.exceptions import NackError

MESSAGE_BYTES = 15 * 1024 * 1024


def main() -> None:
    """Publish to exchanges and routing keys in turn; print how many messages the broker took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("count", type=int)
    parser.add_argument("places", nargs="+", metavar="EXCHANGE/KEY")
    options = parser.parse_args()
    places = [place.split("/") for place in options.places]
    properties = pika.BasicProperties(reply_to="gone", correlation_id="c", delivery_mode=2)
    taken = 0
    with pika.BlockingConnection(pika.URLParameters(options.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(options.count):
            exchange, key = places[number % len(places)]
            with contextlib.suppress(NackError):
                channel.basic_publish(exchange, key, b"x" * MESSAGE_BYTES, properties)
                taken += 1
    print(taken)


if __name__ == "__main__":
    main()
