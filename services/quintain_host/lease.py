"""One leased instance: what is asked of it, in order, each once; until it is torn down or its controller is gone.

What is asked is acknowledged on receipt and answered by its request id: asked again, it is answered alike and not
done again. A lease that nobody renews ends by itself: its run is cancelled, its instance torn down. What cannot be
read is answered where it names somebody to answer, and thrown away otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from quintain.bus.base import Bus, Consumer, Delivery
from quintain.contracts.hosted import (
    RUN_HEARS,
    Asked,
    CancelRun,
    Done,
    Plain,
    Query,
    RunHears,
    SetConfig,
    StartRun,
)
from quintain.contracts.text import whole
from quintain.errors import BadRequest, BusError, Fault
from quintain.routes import CANCEL_RUN, DESCRIBE, QUERY, RENEW, RESET, SET_CONFIG, START_RUN, TEARDOWN
from quintain.service import Settled, defect, forgotten, reply
from quintain.target.codec import Codec
from quintain.target.failures import failure_of
from quintain.telemetry.context import TRACEPARENT_HEADER
from quintain.telemetry.conventions import hosted
from quintain.telemetry.spans import Span, joining
from quintain.timings import Timings
from quintain.topology import lease_topology
from quintain_host.running import HostedRun
from quintain_host.stage import Stage
from quintain_host.tally import Tally
from quintain_host.telling import Telling

log = logging.getLogger(__name__)

#: So many answers are kept, for questions that come again. A controller asks one thing after another.
MOST_ANSWERS = 32

PREFETCH = 128
#: So many of what a run is told are acknowledged at a time: what comes twice does nothing the second time.
ACK_ITEMS = 16


class HostedLease:
    """One instance on its stage, in one controller's hands."""

    def __init__(self, bus: Bus, target: Any, stage: Stage, codec: Codec, tally: Tally, timings: Timings) -> None:
        self._bus, self._target, self._stage, self._codec = bus, target, stage, codec
        self._tally, self._timings = tally, timings
        self.lease_id = secrets.token_urlsafe(24)
        self._topology = lease_topology(self.lease_id)
        self.key = self._topology.bindings[0].key
        self._answers: OrderedDict[str, asyncio.Task[Done]] = OrderedDict()
        self._in_order = asyncio.Lock()
        self._run: HostedRun | None = None
        self._tearing: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._heard_at = asyncio.get_running_loop().time()
        self._consumer: Consumer | None = None
        self._settled = Settled(ACK_ITEMS)

    async def open(self) -> None:
        """Hear what is asked."""
        await self._bus.declare(self._topology)
        self._consumer = await self._bus.consume(self._topology.queues[0], self._on_asked, prefetch=PREFETCH)

    async def lived(self) -> None:
        """Wait until the instance was torn down, or nobody renewed the lease for too long."""
        loop = asyncio.get_running_loop()
        while not self._over.is_set():
            silent = loop.time() - self._heard_at
            if silent >= self._timings.host_lost_seconds:
                log.warning("Lease %s was not renewed for %.0f s: it ends", self.lease_id[:8], silent)
                return
            try:
                async with asyncio.timeout(self._timings.host_lost_seconds - silent):
                    await self._over.wait()
            except TimeoutError:
                continue

    def end_unused(self) -> None:
        """End the lease where nothing was ever asked: it was made ahead, and another host can give another one. The
        first question of one that was just given may be on its way."""
        asyncio.get_running_loop().call_later(self._timings.host_first_question_seconds, self._end_unused)

    def _end_unused(self) -> None:
        if not self._answers:
            self._over.set()

    async def close(self) -> bool:
        """End whatever still runs, tear the instance down, and hear no more.

        Returns whether the instance let go: False where its thread is blocked and was left behind.
        """
        try:
            if self._tearing is not None:
                # It was asked for, and is to come to its end, if it ever does.
                await asyncio.wait([self._tearing], timeout=self._timings.host_lost_seconds)
            for answer in self._answers.values():
                answer.cancel()
            await self._stop_run()
            if self._tearing is None:
                await self._quietly(self._target.reset_ephemeral_state)
                await self._quietly(self._teardown)
            if self._consumer is not None:
                await self._consumer.drain(1.0)
                await forgotten(self._bus, self._topology)
        finally:
            if self._tearing is not None:
                self._tearing.cancel()
            left = await self._stage.close()
        return left

    async def _stop_run(self) -> None:
        if self._run is not None:
            self._run.cancel()
            await self._run.ended()

    async def _quietly(self, act: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self._timings.host_lost_seconds):
                await self._stage.play(_coroutine(act))
        except Exception:
            # Nobody is left to hear it.
            log.exception("A target failed while its lapsed lease was ended")

    async def _on_asked(self, delivery: Delivery) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if delivery.type == RUN_HEARS:
            self._hear(delivery)
            await self._settled.add(delivery)
            return
        await delivery.ack()
        answer: Done | Fault
        try:
            with self._traced(delivery):
                answer = await self._answer(delivery)
        except Fault as fault:
            answer = fault
        except Exception as error:
            # Whatever went wrong, the controller gets its answer.
            answer = defect(error, f"answering {delivery.type}")
        await self._say(delivery, answer)
        if delivery.type == TEARDOWN.key:
            self._over.set()

    def _traced(self, delivery: Delivery) -> AbstractContextManager[Span]:
        """A span of the controller's trace, but for what says only that it lives."""
        if delivery.type == RENEW.key:
            return nullcontext(Span())
        opening = hosted(delivery.type if delivery.type in ACTS else "unknown")
        return joining(opening, delivery.headers.get(TRACEPARENT_HEADER))

    async def _say(self, delivery: Delivery, answer: Done | Fault) -> None:
        try:
            await reply(self._bus, delivery, answer)
        except BadRequest as unsayable:
            # Half a character in a name or a description of the target's, which no message can hold.
            await reply(self._bus, delivery, unsayable)
        except BusError as error:
            log.warning(
                "The answer to a %s could not be sent, and is asked for again: %s", delivery.type, error.message
            )

    def _hear(self, delivery: Delivery) -> None:
        try:
            heard = RunHears.from_wire(delivery.body)
        except BadRequest as unreadable:
            log.warning("A run was told what cannot be read: %s", unreadable.message)
            return
        if self._run is not None and self._run.run_id == heard.run_id:
            self._run.hear(heard)

    async def _answer(self, delivery: Delivery) -> Done:
        if delivery.type == RENEW.key:
            return Done()
        if delivery.type not in ACTS:
            raise BadRequest(f"{delivery.type!r} is nothing that can be asked of a lease")
        asks, act = ACTS[delivery.type]
        asked = asks.from_wire(delivery.body)
        if asked.request_id not in self._answers:
            doing = self._do(lambda: act(self, asked))
            self._answers[asked.request_id] = asyncio.get_running_loop().create_task(doing)
            if len(self._answers) > MOST_ANSWERS:
                self._answers.popitem(last=False)
        return await asyncio.shield(self._answers[asked.request_id])

    async def _do(self, act: Callable[[], Awaitable[Done]]) -> Done:
        async with self._in_order:
            try:
                return await act()
            except Exception as error:
                # What a target raises crosses with its class.
                return Done(failure=failure_of(error))

    async def describe(self, _: Plain) -> Done:
        """What the target exposes, as it is configured now."""
        return Done(descriptor=await self._stage.do(lambda: self._codec.describe(self._target)))

    async def set_config(self, asked: SetConfig) -> Done:
        """Fill a slot."""
        await self._stage.do(lambda: self._target.set_config(asked.name, asked.value))
        return Done()

    async def query(self, asked: Query) -> Done:
        """Ask after a run. Raises `TypeError` where the answer is no text."""
        value = await self._stage.do(lambda: self._target.query(asked.name, **asked.params))
        if not isinstance(value, str):
            raise TypeError(
                f"The query {asked.name!r} was answered with a {type(value).__name__}: a target's values are text"
            )
        return Done(value=whole(value))

    async def start_run(self, asked: StartRun) -> Done:
        """Begin a run; what it says goes its own way."""
        await self._stop_run()
        telling = Telling(self._bus, asked.run_id, asked.run_key, self._timings)
        self._run = HostedRun(self._target, self._stage, self._codec, asked, telling)
        self._run.when_over(self._tally.count)
        return Done()

    async def cancel_run(self, asked: CancelRun) -> Done:
        """Stop a run that nobody awaits any more."""
        if self._run is not None and self._run.run_id == asked.run_id:
            await self._stop_run()
        return Done()

    async def reset(self, _: Plain) -> Done:
        """Clear what belonged to the run."""
        await self._stage.play(_coroutine(self._target.reset_ephemeral_state))
        return Done()

    async def teardown(self, _: Plain) -> Done:
        """Let go of everything: the lease is over, whatever the target says of it."""
        await self._teardown()
        return Done()

    async def _teardown(self) -> None:
        """Tear the instance down; once, whoever wants it."""
        if self._tearing is None:
            tearing = self._stage.play(_coroutine(self._target.teardown))
            self._tearing = asyncio.get_running_loop().create_task(tearing)
        await asyncio.shield(self._tearing)


Act = Callable[[HostedLease, Any], Awaitable[Done]]

#: What may be asked of a lease: the message, and what is done.
ACTS: dict[str, tuple[type[Asked], Act]] = {
    DESCRIBE.key: (Plain, HostedLease.describe),
    SET_CONFIG.key: (SetConfig, HostedLease.set_config),
    QUERY.key: (Query, HostedLease.query),
    START_RUN.key: (StartRun, HostedLease.start_run),
    CANCEL_RUN.key: (CancelRun, HostedLease.cancel_run),
    RESET.key: (Plain, HostedLease.reset),
    TEARDOWN.key: (Plain, HostedLease.teardown),
}


async def _coroutine(act: Callable[[], Awaitable[None]]) -> None:
    await act()
