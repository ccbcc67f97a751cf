"""A driver in plain pika that does nothing but what ``docs/protocol/hosts.md`` says. It imports no quintain."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import pika
from pika.adapters.blocking_connection import BlockingChannel

VERSION = 4
HEARTBEAT_SECONDS = 1.0

Item = dict[str, Any]


class RawDriver:
    """One lease, as its driver has it. A context manager, which tears the instance down at its end."""

    def __init__(self, broker_url: str, name: str) -> None:
        self._url, self._name = broker_url, name
        self.lease_id = secrets.token_hex(16)
        #: Where the host receives; that of its last message.
        self.host_key = ""
        #: All items of the host, in order; the first one has the number 1.
        self.items: list[Item] = []
        self.faults: list[Item] = []
        #: What was published under an address that does not exist.
        self.returned = 0
        #: When each message of the host came.
        self.heard_at: list[float] = []
        #: How many messages of the host are dropped as if they were never sent.
        self.dropped = 0
        #: How many times the host asked for everything again.
        self.asked_again = 0
        #: Whether it sends no heartbeats; whether it has asked for the teardown.
        self.is_silent = self.is_torn_down = False
        #: The highest number of the host that is said to be processed; None for all that came.
        self.processed_limit: int | None = None
        self._kept: list[tuple[int, Item]] = []
        self._said = 0
        self._published_at = self._asked_at = 0.0
        self.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type | None, error: BaseException | None, __: TracebackType | None) -> None:
        try:
            if error is None and self.host_key and not (self.is_torn_down or self.returned):
                self.result(self.ask("teardown"))
        finally:
            self.close()

    def connect(self) -> None:
        """Connect, and receive under a new key from now on."""
        self._connection = pika.BlockingConnection(pika.URLParameters(self._url))
        self._channel: BlockingChannel = self._connection.channel()
        self._channel.add_on_return_callback(self._on_return)
        self._channel.exchange_declare("quintain.host", "direct", durable=True)
        self._channel.exchange_declare("quintain.reply", "direct", durable=True)
        queue, self.key = f"driver-{secrets.token_hex(8)}", f"driver.{secrets.token_urlsafe(24)}"
        self._channel.queue_declare(queue, exclusive=True)
        self._channel.queue_bind(queue, "quintain.reply", self.key)
        self._channel.basic_consume(queue, self._on_message, auto_ack=True)

    def close(self) -> None:
        """Vanish: nothing is said to the host."""
        self._connection.close()

    # What it says.

    def open(self, *, seconds: float = 20, check: Callable[[], None] = lambda: None, **fields: Any) -> Item:
        """Request a lease until a host is there; return the result of its first item, or the fault that refuses it."""
        number = self._number({"type": "open", "version": VERSION, **fields})
        ends = time.monotonic() + seconds
        while not self.items and not self.faults:
            check()
            assert time.monotonic() < ends, f"no host gives a lease of {self._name!r} within {seconds} s"
            if self.returned or not self._published_at:
                self.returned = 0
                self._publish(self._kept)
            self.wait(0.05)
        return self.result(number) if self.items else {"fault": self.faults[0]}

    def ask(self, kind: str, **fields: Any) -> int:
        """Publish one item, and return its number."""
        number = self._number({"type": kind, **fields})
        self.is_torn_down = kind == "teardown"
        self._publish(self._kept[-1:])
        return number

    def skip(self, kind: str, **fields: Any) -> int:
        """Give an item its number without publishing it, as if it was lost."""
        return self._number({"type": kind, **fields})

    def call(self, kind: str, **fields: Any) -> Item:
        """Ask, and wait for the result, which is no failure."""
        result = self.result(self.ask(kind, **fields))
        assert "failure" not in result, result
        return result

    def run(self, *script: list[Any], diary: str = "") -> int:
        """Start a run of this script, and return its number."""
        self.call("set_config", values={"script": json.dumps(script), "diary": diary})
        return self.ask("run", events=["ObservableEvent", "ControllablePreCallEvent", "ControllablePostCallEvent"])

    def reply(self, to: int, value: str) -> None:
        """Put a value in."""
        question = {"name": "question", "domain": ["user", "root"]}
        response = {"kind": "ControllableInjection", "controllable": question, "value": value}
        self.ask("reply", to=to, response=response)

    def publish_again(self) -> None:
        """Publish everything that the host has not processed, and ask it for the same."""
        self._publish(self._kept, again=True)

    def publish_raw(self, body: bytes | object, *, key: str | None = None, **properties: Any) -> None:
        """Publish anything to the host."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"type": "lease", "correlation_id": self.lease_id, "reply_to": self.key, **properties}
        to = self.host_key if key is None else key
        self._channel.basic_publish("quintain.host", to, data, pika.BasicProperties(**fields), mandatory=True)

    # What it hears.

    def result(self, to: int, *, seconds: float = 20) -> Item:
        """Wait for the result of an item."""
        self.wait_until(lambda: self.results_of(to), seconds=seconds)
        return self.results_of(to)[0]

    def results_of(self, to: int) -> list[Item]:
        """All results of an item: at most one."""
        return [item for item in self.items if item["type"] == "result" and item["to"] == to]

    def sent(self, count: int, *, seconds: float = 20) -> list[tuple[int, Item]]:
        """Wait until the target has sent so many events that wait; return their numbers and events."""
        sends: list[tuple[int, Item]] = []

        def are_there() -> bool:
            sends[:] = [(number, item["event"]) for number, item in enumerate(self.items, 1) if item["type"] == "send"]
            return len(sends) >= count

        self.wait_until(are_there, seconds=seconds)
        return sends

    def contents(self) -> list[Any]:
        """What the target has shown."""
        return [json.loads(item["event"]["content"]) for item in self.items if item["type"] == "emit"]

    def wait_until(self, condition: Callable[[], object], *, seconds: float = 20) -> None:
        """Receive until a condition holds."""
        ends = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < ends, f"not within {seconds} s; the host said {self.items[-5:]}"
            self._step(0.02)

    def wait(self, seconds: float) -> None:
        """Receive for so long."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self._step(min(0.05, seconds))

    def _step(self, seconds: float) -> None:
        self._connection.process_data_events(time_limit=seconds)
        if self.host_key and not self.is_silent and time.monotonic() - self._published_at > HEARTBEAT_SECONDS:
            self._publish([])

    def _number(self, item: Item) -> int:
        self._said += 1
        self._kept.append((self._said, item))
        return self._said

    @property
    def unprocessed(self) -> int:
        """How many items the host has not said to be processed."""
        return len(self._kept)

    @property
    def _processed(self) -> int:
        return len(self.items) if self.processed_limit is None else min(len(self.items), self.processed_limit)

    def _publish(self, items: list[tuple[int, Item]], *, again: bool = False) -> None:
        body = {
            "number": items[0][0] if items else self._said + 1,
            "processed": self._processed,
            "again": again,
            "items": [item for _, item in items],
        }
        self._published_at = time.monotonic()
        self.publish_raw(body, key=self.host_key or self._name)

    def _on_return(self, *_: object) -> None:
        self.returned += 1

    def _on_message(self, _: object, __: object, properties: pika.BasicProperties, body: bytes) -> None:
        assert properties.correlation_id == self.lease_id, "the host answers a lease under its id"
        message = json.loads(body)
        if properties.type == "fault":
            self.faults.append(message)
            return
        assert properties.type == "lease", properties.type
        if self.dropped:
            self.dropped -= 1
            return
        self.heard_at.append(time.monotonic())
        if message["number"] == 0:  # beside the numbering
            return
        self.host_key = properties.reply_to or self.host_key
        self._kept = [(number, item) for number, item in self._kept if number > message["processed"]]
        known = len(self.items) + 1 - message["number"]
        if known >= 0:
            self.items += message.get("items", [])[known:]
        elif time.monotonic() - self._asked_at > HEARTBEAT_SECONDS:
            self._asked_at = time.monotonic()
            self._publish([], again=True)
        if message.get("again"):
            self.asked_again += 1
            self._publish(self._kept)
