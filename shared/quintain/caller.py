"""Asking over the bus: one reply queue, many questions in flight, matched by random correlation ids.

The evaluators' SDK, the workers and the gateway all ask through this. A reply whose question is no longer
waited for is acknowledged, counted and dropped: after a crash the same answer may come twice.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from quintain.bus.base import Bus, Consumer, Delivery, Envelope, HeaderValue
from quintain.contracts.invoke import FaultReply
from quintain.contracts.message import Message
from quintain.errors import BadRequest, InternalFault, NoAnswer, Unroutable
from quintain.routes import Route
from quintain.topology import EVALUATOR_TOPOLOGY, Exchange, Queue, reply_topology

Ask = TypeVar("Ask", bound=Message)
Answer = TypeVar("Answer", bound=Message)

#: How many replies one caller takes from its queue at a time.
REPLY_PREFETCH = 256

#: How often a question that nothing serves yet is asked again, in seconds.
UNSERVED_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to publish, where, and for how long an answer is of use. ``deadline_seconds`` is from now."""

    exchange: Exchange
    key: str
    type: str
    body: bytes
    headers: Mapping[str, HeaderValue]
    deadline_seconds: float
    #: When the broker may drop it, from now; the deadline where nothing is said.
    expires_seconds: float | None = None


class Caller:
    """One client's reply queue and the questions that wait for it."""

    def __init__(self, bus: Bus, *, user: str = "anyone") -> None:
        self._bus = bus
        # The key ends in 192 random bits: who cannot guess it cannot forge a reply.
        self.reply_key = f"{user}.{secrets.token_urlsafe(24)}"
        self._topology = reply_topology(f"quintain.reply.{self.reply_key}", self.reply_key)
        self._pending: dict[str, Callable[[Delivery], None]] = {}
        self._consumer: Consumer | None = None
        self.unmatched = 0

    async def start(self) -> None:
        """Declare and consume the reply queue."""
        await self._bus.declare(EVALUATOR_TOPOLOGY + self._topology)
        queue: Queue = self._topology.queues[0]
        self._consumer = await self._bus.consume(queue, self._on_reply, prefetch=REPLY_PREFETCH)

    async def close(self) -> None:
        """Stop taking replies."""
        if self._consumer is not None:
            await self._consumer.cancel()

    @property
    def in_flight(self) -> int:
        """How many questions wait for their answer."""
        return len(self._pending)

    def subscribe(self, correlation_id: str, heard: Callable[[Delivery], None]) -> Callable[[], None]:
        """Hear every reply under this correlation id; returns how to stop."""
        self._pending[correlation_id] = heard
        return lambda: self._pending.pop(correlation_id, None) and None

    async def send(self, question: Question, correlation_id: str) -> None:
        """Publish a question; its replies go to whoever subscribed. Raises what `Bus.publish` raises."""
        useful = question.deadline_seconds if question.expires_seconds is None else question.expires_seconds
        await self._bus.publish(
            question.exchange,
            question.key,
            Envelope(
                body=question.body,
                type=question.type,
                correlation_id=correlation_id,
                reply_to=self.reply_key,
                headers=question.headers,
                expiration_ms=max(1, int(useful * 1000)),
            ),
            timeout=question.deadline_seconds,
        )

    async def ask(self, question: Question) -> Delivery:
        """Publish a question and wait for its final answer.

        Raises `NoAnswer` when the deadline passes, and what `Bus.publish` raises.
        """
        answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

        def heard(delivery: Delivery) -> None:
            if delivery.type in {"result", "fault"} and not answer.done():
                answer.set_result(delivery)

        correlation_id = secrets.token_urlsafe(16)
        forget = self.subscribe(correlation_id, heard)
        try:
            async with asyncio.timeout(question.deadline_seconds):
                await self.send(question, correlation_id)
                return await answer
        except TimeoutError:
            raise NoAnswer(
                f"No answer to {question.type} within {question.deadline_seconds:.1f} s: does the service that "
                f"consumes {question.exchange.name} run? (`quintain serve metadata`)"
            ) from None
        finally:
            forget()

    async def request(
        self,
        route: Route[Ask, Answer],
        ask: Ask,
        headers: Mapping[str, HeaderValue],
        *,
        timeout_seconds: float = 30.0,
    ) -> Answer:
        """Ask a service's route; waits for the service to come up where it is not there yet.

        Raises the `Fault` it answers with, or `NoAnswer`.
        """
        question = Question(
            exchange=route.exchange,
            key=route.key,
            type=route.key,
            body=ask.to_wire(),
            headers=headers,
            deadline_seconds=timeout_seconds,
        )
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_seconds
        while True:
            try:
                still = dataclasses.replace(question, deadline_seconds=ends - loop.time())
                return understood(await self.ask(still), route.answers)
            except Unroutable:
                if loop.time() + UNSERVED_PAUSE_SECONDS >= ends:
                    raise NoAnswer(
                        f"No service answers {route.name} (nothing consumes {route.exchange.name}, waited "
                        f"{timeout_seconds:.0f} s): start one with `quintain serve metadata`"
                    ) from None
                await asyncio.sleep(UNSERVED_PAUSE_SECONDS)

    async def _on_reply(self, delivery: Delivery) -> None:
        heard = self._pending.get(delivery.correlation_id or "")
        if heard is None:
            self.unmatched += 1
        else:
            heard(delivery)
        await delivery.ack()


def understood(reply: Delivery, answers: type[Answer]) -> Answer:
    """The answer of a reply; raises the `Fault` it carries.

    A reply nobody can read is an `InternalFault`, and charged as far as is known: the asker did nothing wrong.
    """
    try:
        if reply.type != "fault":
            return answers.from_wire(reply.body)
        fault = FaultReply.from_wire(reply.body)
    except BadRequest as unreadable:
        raise InternalFault(f"The answer cannot be read ({unreadable.message})", charged=True) from None
    raise fault.raised()
