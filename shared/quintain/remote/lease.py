"""One lease of a hosted instance, from its controller's side: asking, renewing, and knowing when the host has gone.

Everything here lives on one loop, the line's. What is asked is asked again until it is answered: the host answers one
request id once and alike. A host that is silent for `Timings.host_lost_seconds` has gone, and so has one that took the
lease's own queue away; whoever waits hears `HostLost`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import Any

from quintain.bus.base import Bus
from quintain.caller import Caller, Question, understood
from quintain.contracts.hosted import (
    Asked,
    AskLease,
    Descriptor,
    Done,
    LeaseAnswer,
    Plain,
)
from quintain.errors import BusError, HostLost, NeverAsked, NoAnswer, QuintainError, Unroutable
from quintain.routes import LEASE, RENEW, TEARDOWN, Route
from quintain.target.failures import Errands, raised
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import HOST

log = logging.getLogger(__name__)

#: How a lease may be over, in the words of whoever still wanted something of it.
ENDED = "its host has ended it"
GIVEN_UP = "it was given up here"


class RemoteLease:
    """A leased instance somewhere else."""

    def __init__(self, bus: Bus, caller: Caller, name: str, answer: LeaseAnswer, timings: Timings) -> None:
        assert answer.descriptor is not None, "a lease without a failure has a descriptor"
        self.bus, self._caller, self.timings = bus, caller, timings
        self.name, self.key, self.lease_id = name, answer.key, answer.lease_id
        self.descriptor: Descriptor = answer.descriptor
        self.errands = Errands()
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._why = ""
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._tasks = [
            self._loop.create_task(self._renew_on(), name=f"renew {self.lease_id[:8]}"),
            self._loop.create_task(self._watch(), name=f"watch {self.lease_id[:8]}"),
        ]

    def heard(self) -> None:
        """The host has just been heard of."""
        self._heard_at = self._loop.time()

    @property
    def gone(self) -> bool:
        """Whether the host was lost, or the lease given up."""
        return self.lost.done()

    async def ask(self, route: Route[Any, Done], **fields: Any) -> Done:
        """Ask the instance; returns when the host answers, however long the target takes.

        Raises what the target raised, as far as its class is known here, and `HostLost`; `NeverAsked` where the host
        provably did not get it.
        """
        asked = route.asks(lease_id=self.lease_id, request_id=secrets.token_hex(8), **fields)
        asking = self._loop.create_task(self._ask_until_answered(route, asked))
        try:
            ends: set[asyncio.Future[Any]] = {asking, self.lost}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise self.loss()
            done = asking.result()
        finally:
            asking.cancel()
        if done.failure is not None:
            raise self.errands.back(done.failure)
        return done

    def loss(self) -> HostLost:
        """What whoever waits is told once the host has gone."""
        return HostLost(
            f"Lease {self.lease_id[:8]} of target {self.name!r} is over: {self._why}. A run is never repeated by "
            "itself: it may have had effects"
        )

    async def give_up(self) -> None:
        """Renew no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end(GIVEN_UP)

    async def release(self) -> None:
        """Give the lease up and have its host end it, without waiting for that. Never raises."""
        over = self.gone
        await self.give_up()
        if not over:
            asked = Plain(lease_id=self.lease_id, request_id=secrets.token_hex(8))
            with contextlib.suppress(BusError):
                await self._caller.send(
                    self._question(TEARDOWN, asked, self.timings.host_heartbeat_seconds), secrets.token_urlsafe(16)
                )

    def _end(self, why: str) -> None:
        if not self.lost.done():
            self._why = why
            self.lost.set_result(None)

    async def _ask_until_answered(self, route: Route[Any, Done], asked: Asked) -> Done:
        carried = False
        while True:
            try:
                return await self._ask_once(route, asked, self.timings.host_repeat_seconds)
            except Unroutable as returned:
                self._end(ENDED)
                perhaps = carried or returned.arrived_before
                raise (self.loss() if perhaps else NeverAsked(self.loss().message)) from None
            except (NoAnswer, BusError) as silence:
                carried = True
                log.debug("%s was not answered and is asked again: %s", route.name, silence.message)
                await asyncio.sleep(0.1)

    async def _ask_once(self, route: Route[Any, Done], asked: Asked, seconds: float) -> Done:
        done = understood(await self._caller.ask(self._question(route, asked, seconds)), Done)
        self.heard()
        return done

    def _question(self, route: Route[Any, Done], asked: Asked, seconds: float) -> Question:
        return Question(
            exchange=HOST, key=self.key, type=route.key, body=asked.to_wire(), headers={}, deadline_seconds=seconds
        )

    async def _watch(self) -> None:
        """Notice the silence when it is long enough, not when the next beat is due."""
        lost_seconds = self.timings.host_lost_seconds
        while (left := self._heard_at + lost_seconds - self._loop.time()) > 0:  # noqa: ASYNC110 -- a sleep of its length
            await asyncio.sleep(left)
        self._end(f"nothing was heard of it for {lost_seconds:.3g} s")

    async def _renew_on(self) -> None:
        while not self.lost.done():
            await asyncio.sleep(self.timings.host_heartbeat_seconds)
            asked = Plain(lease_id=self.lease_id, request_id=secrets.token_hex(8))
            try:
                await self._ask_once(RENEW, asked, self.timings.host_heartbeat_seconds)
            except Unroutable:
                self._end(ENDED)
            except QuintainError as silence:
                log.debug("Lease %s was not renewed: %s", self.lease_id[:8], silence.message)
        log.info("%s", self.loss().message)


async def lease(
    bus: Bus, caller: Caller, name: str, *, timeout_seconds: float, timings: Timings = DEFAULT_TIMINGS
) -> RemoteLease:
    """Lease a fresh instance; waits for a free slot. Raises `NoAnswer` where none is free in time, and what the
    target's factory raised."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + timeout_seconds
    controller_id = secrets.token_hex(8)
    while True:
        question = Question(
            exchange=HOST,
            key=name,
            type=LEASE.key,
            body=AskLease(controller_id=controller_id).to_wire(),
            headers={},
            deadline_seconds=max(0.1, ends - loop.time()),
        )
        try:
            answer = understood(await caller.ask(question), LeaseAnswer)
        except (NoAnswer, Unroutable):
            if loop.time() + 0.2 >= ends:
                raise NoAnswer(
                    f"No host leased target {name!r} within {timeout_seconds:.0f} s: start one with "
                    f"`quintain serve host module:factory --name {name}`, or more --slots"
                ) from None
            await asyncio.sleep(0.2)
            continue
        if answer.failure is not None:
            raise raised(answer.failure)
        return RemoteLease(bus, caller, name, answer, timings)
