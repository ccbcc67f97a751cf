"""Asking over the bus: one reply queue, many questions in flight, matched by random correlation ids.

The evaluators' SDK, the workers and the gateway all ask through this. A reply whose question is no longer
waited for is acknowledged, counted and dropped: after a crash the same answer may come twice. Where the reply queue
is lost, every question that waits goes out again as it was, with the time it has left, from a fresh one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from quintain.bus.base import Bus, Delivery, Envelope, HeaderValue
from quintain.contracts.invoke import FaultReply
from quintain.contracts.message import Message
from quintain.errors import BadRequest, BrokerRefused, BusError, InternalFault, NoAnswer, Unroutable
from quintain.random_ids import RandomIds
from quintain.reply_queue import ReplyQueue
from quintain.routes import Route
from quintain.telemetry.spans import context_headers
from quintain.topology import Exchange

log = logging.getLogger(__name__)

Ask = TypeVar("Ask", bound=Message)
Answer = TypeVar("Answer", bound=Message)

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


@dataclass(slots=True, eq=False)
class _Pending:
    """Who hears the replies under one correlation id, and what was last sent under it, if anything."""

    heard: Callable[[Delivery], None]
    question: Question | None = None
    sent_at: float = 0.0

    def unanswered(self, now: float) -> Question | None:
        """The question with the time it has left; None where there is none, or no time."""
        if self.question is None:
            return None
        deadline = self.question.deadline_seconds - (now - self.sent_at)
        expires = self.question.expires_seconds
        expires = None if expires is None else expires - (now - self.sent_at)
        if min(deadline, deadline if expires is None else expires) <= 0:
            return None
        return dataclasses.replace(self.question, deadline_seconds=deadline, expires_seconds=expires)


class Caller:
    """One client's reply queue and the questions that wait for it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._replies = ReplyQueue(bus, self._on_reply, self._on_moved)
        self._pending: dict[str, _Pending] = {}
        self._asking_again: set[asyncio.Task[None]] = set()
        self._ids = RandomIds()
        self.unmatched = 0

    @property
    def reply_key(self) -> str:
        """Where answers are to be sent; another one when the reply queue was lost, so ask for it each time."""
        return self._replies.key

    async def start(self) -> None:
        """Declare and consume the reply queue."""
        await self._replies.open()

    async def close(self) -> None:
        """Stop taking replies, and delete the reply queue."""
        for asking in self._asking_again:
            asking.cancel()
        await asyncio.gather(*self._asking_again, return_exceptions=True)
        await self._replies.close()

    @property
    def in_flight(self) -> int:
        """How many questions wait for their answer."""
        return len(self._pending)

    def subscribe(self, correlation_id: str, heard: Callable[[Delivery], None]) -> Callable[[], None]:
        """Hear every reply under this correlation id; returns how to stop."""
        self._pending[correlation_id] = _Pending(heard)

        def forget() -> None:
            self._pending.pop(correlation_id, None)

        return forget

    async def send(self, question: Question, correlation_id: str) -> None:
        """Publish a question; its replies go to whoever subscribed. Raises what `Bus.publish` raises.

        It goes out again where the reply queue is lost while somebody is subscribed and its time is not over: of
        several under one correlation id the last one.
        """
        pending = self._pending.get(correlation_id)
        if pending is not None:
            pending.question, pending.sent_at = question, asyncio.get_running_loop().time()
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

    async def ask(self, question: Question, pieces: Callable[[Delivery], None] | None = None) -> Delivery:
        """Publish a question and wait for its final answer; ``pieces`` hears what comes before it.

        Raises `NoAnswer` when the deadline passes, and what `Bus.publish` raises.
        """
        answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        question = _in_context(question)

        def heard(delivery: Delivery) -> None:
            if answer.done():
                return
            if delivery.type in {"result", "fault"}:
                answer.set_result(delivery)
            elif pieces is not None:
                pieces(delivery)

        correlation_id = self._ids.next()
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
        pending = self._pending.get(delivery.correlation_id or "")
        if pending is None:
            self.unmatched += 1
        else:
            pending.heard(delivery)
        await delivery.ack()

    def _on_moved(self) -> None:
        for correlation_id, pending in self._pending.items():
            if pending.question is not None:
                asking = asyncio.get_running_loop().create_task(self._ask_again(correlation_id, pending))
                self._asking_again.add(asking)
                asking.add_done_callback(self._asking_again.discard)

    async def _ask_again(self, correlation_id: str, pending: _Pending) -> None:
        """Send what is unanswered, for as long as somebody waits for it: it may have been answered into the queue
        that was lost. What is refused for now may be under way already, so that is no answer."""
        while self._pending.get(correlation_id) is pending:
            question = pending.unanswered(asyncio.get_running_loop().time())
            if question is None:
                return
            try:
                await self.send(question, correlation_id)
            except BrokerRefused as refusal:
                log.error("A %s request cannot be sent again: %s", question.type, refusal.message)
                return
            except BusError as error:
                log.warning("A %s request could not be sent again yet: %s", question.type, error.message)
                await asyncio.sleep(UNSERVED_PAUSE_SECONDS)
            else:
                return


def _in_context(question: Question) -> Question:
    """The question with the trace it belongs to, where there is one; sent again it belongs to the same."""
    carried = context_headers()
    return dataclasses.replace(question, headers={**question.headers, **carried}) if carried else question


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
