"""Hears everything that is published on the protocol's exchanges, as copies in a queue of its own."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pika

from quintain.routes import ROUTES
from quintain.topology import CANCEL, EVENTS, INVOKE, LEDGER, METADATA, METADATA_TOPOLOGY, REPLY


@dataclass(frozen=True)
class TappedMessage:
    """One message as it was on the wire; ``headers`` has AMQP's own properties too. ``request_type``: what was asked
    under its correlation id."""

    exchange: str
    key: str
    amqp_type: str
    headers: dict[str, object]
    body: bytes
    request_type: str


class WireTap:
    """Listens from now on. Replies are heard under the keys it is told of: a direct exchange names nobody's."""

    def __init__(self, broker_url: str, targets: Sequence[str]) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(broker_url))
        self._channel = self._connection.channel()
        self._queue = f"tap-{secrets.token_hex(8)}"
        #: Correlation id → what was asked, also before the last look.
        self._request_types: dict[str, str] = {}
        for exchange in METADATA_TOPOLOGY.exchanges:
            self._channel.exchange_declare(exchange.name, exchange.kind, durable=True, arguments=exchange.arguments)
        self._channel.queue_declare(self._queue, exclusive=True)
        for target in targets:  # and no wildcard: what nothing else takes is to stay unrouted
            self._channel.queue_bind(self._queue, INVOKE.name, target)
        self._channel.queue_bind(self._queue, CANCEL.name)
        self._channel.queue_bind(self._queue, EVENTS.name, "#")
        for route in ROUTES:
            if route.exchange in {METADATA, LEDGER}:
                self._channel.queue_bind(self._queue, route.exchange.name, route.key)

    def bind_reply_keys(self, *keys: str) -> None:
        """Hear the replies under these keys too, from now on."""
        for key in keys:
            self._channel.queue_bind(self._queue, REPLY.name, key)

    def bind_admit_keys(self, *keys: str) -> None:
        """Hear the admits that go to the queues of single metadata services, from now on."""
        for key in keys:
            self._channel.queue_bind(self._queue, LEDGER.name, key)

    def drain(self) -> list[TappedMessage]:
        """What has come so far."""
        messages: list[TappedMessage] = []
        while True:
            method, properties, body = self._channel.basic_get(self._queue, auto_ack=True)
            if method is None or properties is None:
                break
            amqp_headers = {"reply_to": properties.reply_to, "correlation_id": properties.correlation_id}
            application_headers = {
                name: int(value) if isinstance(value, int) else value
                for name, value in (properties.headers or {}).items()
            }
            headers = {**application_headers, **{name: value for name, value in amqp_headers.items() if value}}
            message = TappedMessage(method.exchange, method.routing_key, properties.type, headers, body, "")
            if properties.reply_to:
                self._request_types[properties.correlation_id] = properties.type
            messages.append(message)
        # A copy of an answer may overtake that of its question.
        return [replace(one, request_type=self._request_type_of(one)) for one in messages]

    def _request_type_of(self, one: TappedMessage) -> str:
        return self._request_types.get(str(one.headers.get("correlation_id")), "")

    def close(self) -> None:
        """Listen no more; the queue goes with the connection."""
        self._connection.close()
