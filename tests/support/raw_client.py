"""A client in plain pika that does nothing but what ``docs/protocol/README.md`` says. It imports no quintain."""

from __future__ import annotations

import json
import secrets
import time
import uuid
from typing import Any

import pika


class RawAmqpClient:
    """Publishes invoke requests and collects replies by correlation id."""

    def __init__(self, broker_url: str, token: str) -> None:
        self._token = token
        self._connection = pika.BlockingConnection(pika.URLParameters(broker_url))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        #: Where its replies come.
        self.reply_key = f"stranger.{secrets.token_urlsafe(24)}"
        queue = f"my-replies-{secrets.token_hex(4)}"
        self._channel.exchange_declare("quintain.reply", "direct", durable=True)
        self._channel.queue_declare(queue, durable=True, arguments={"x-expires": 600_000})
        self._channel.queue_bind(queue, "quintain.reply", self.reply_key)
        self._channel.basic_consume(queue, self._on_reply, auto_ack=True)
        self.replies: dict[str, list[tuple[str, dict[str, object]]]] = {}

    def publish(
        self,
        body: object,
        *,
        key: str = "",
        exchange: str = "quintain.invoke",
        kind: str = "invoke",
        seconds: float = 60,
        headers: dict[str, object] | None = None,
    ) -> str:
        correlation_id = uuid.uuid4().hex
        self._channel.basic_publish(
            exchange,
            key,
            body if isinstance(body, bytes) else json.dumps(body).encode(),
            pika.BasicProperties(
                reply_to=self.reply_key,
                correlation_id=correlation_id,
                type=kind,
                content_type="application/json",
                delivery_mode=2,
                message_id=uuid.uuid4().hex,
                expiration=str(int(seconds * 1000)),
                headers={
                    "x-quintain-session": self._token,
                    "x-quintain-deadline": int((time.time() + seconds) * 1000),
                    **(headers or {}),
                },
            ),
            mandatory=True,
        )
        return correlation_id

    def wait(self, correlation_ids: list[str], *, seconds: float = 30) -> None:
        """Until each has a reply."""
        ends = time.monotonic() + seconds
        while missing := [one for one in correlation_ids if one not in self.replies]:
            assert time.monotonic() < ends, f"{len(missing)} of {len(correlation_ids)} had no reply in {seconds} s"
            self._connection.process_data_events(time_limit=0.2)

    def call(self, body: object, *, key: str = "", **options: object) -> tuple[str, dict[str, object]]:
        correlation_id = self.publish(body, key=key, **options)  # type: ignore[arg-type]
        self.wait([correlation_id])
        return self.replies[correlation_id][0]

    def close(self) -> None:
        self._connection.close()

    def _on_reply(self, _channel: object, _method: object, properties: pika.BasicProperties, body: bytes) -> None:
        self.replies.setdefault(properties.correlation_id, []).append((properties.type, json.loads(body)))


def text_of(result: dict[str, Any]) -> str:
    """The text of a result's body: that of its last message, where that is no list of parts."""
    text: str = result["output"][-1]["content"]
    return text
