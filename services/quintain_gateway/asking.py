"""Calls on their way to an answer that is written while they go on: streamed, or kept waiting for.

Status and headers can be sent once only, so before them it must be certain that the calls may be made at all: the
budget is taken, the target is the session's. After that the connection is kept alive, however long the queue is.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from quintain.client.client import Client
from quintain.contracts.invoke import Chunk, InvokeRequest, Result
from quintain.errors import BudgetExhausted, BusError, Fault, ForbiddenTarget, NoAnswer
from quintain.service import defect
from quintain_gateway.door import unreachable
from quintain_gateway.keys import Key

log = logging.getLogger(__name__)

#: So long it is tried to give back what was reserved and not used, in seconds.
GIVE_BACK_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked: one call for each choice. ``listens``: the answer's pieces are wanted as they come."""

    request: InvokeRequest
    key: Key
    deadline_seconds: float
    choices: int = 1
    listens: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """What came of one of the calls: a piece of its answer, its result, or its fault."""

    choice: int
    what: Chunk | Result | Fault


class Asking:
    """The calls of one request, all under way at once. Whoever begins them closes them."""

    def __init__(self, client: Client, wanted: Wanted) -> None:
        self._client, self._wanted = client, wanted
        self._ids = wanted.key.request_ids(wanted.choices)
        self._calls: list[asyncio.Task[Result]] = []
        self._heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._unspent = set[str]()

    @property
    def choices(self) -> int:
        """How many calls they are."""
        return len(self._ids)

    async def begin(self) -> None:
        """Ask: all of them, or, where the budget does not suffice for that, none.

        Raises `BudgetExhausted`, and what else a reservation may end with.
        """
        if len(self._ids) > 1:
            await self._reserve(self._ids)
        loop = asyncio.get_running_loop()
        self._calls = [loop.create_task(self._call(choice)) for choice in range(len(self._ids))]

    async def decided(self) -> None:
        """Make certain, before anything is sent, that calls which still wait in a queue may be made.

        Raises `BudgetExhausted`, `ForbiddenTarget`, `Unauthorized`.
        """
        info = await self._client.get_info()
        target = self._wanted.request.names or info.target_name
        if target not in info.available_targets:
            raise ForbiddenTarget(f"This session may not call {target!r}")
        waiting = [name for name, call in zip(self._ids, self._calls, strict=True) if not call.done()]
        try:
            await self._reserve(waiting)
        except BudgetExhausted:
            if len(self._ids) > 1 or info.call_count < info.max_calls:
                raise
            # Nobody asked for a batch: the sentence that a single call hears.
            raise BudgetExhausted(f"Max calls exceeded (limit: {info.max_calls})") from None

    async def next(self, seconds: float) -> Heard | None:
        """What came next; None where nothing came in so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                return await self._heard.get()
        except TimeoutError:
            return None

    async def results(self, seconds: float) -> list[Result] | None:
        """Every choice's result; None where that takes longer. Raises the first `Fault`, without waiting for others."""
        done, waiting = await asyncio.wait(self._calls, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for call in done:
            call.result()
        return None if waiting else [call.result() for call in self._calls]

    async def close(self) -> None:
        """Take back what still runs, and give back what was reserved and not used."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        if not self._unspent:
            return
        try:
            async with asyncio.timeout(GIVE_BACK_SECONDS):
                await self._client.release(sorted(self._unspent))
        except (Fault, BusError, TimeoutError) as lost:
            log.warning("What a request reserved and did not use is given back at its deadline: %s", lost)

    async def _reserve(self, request_ids: list[str]) -> None:
        if not request_ids:
            return
        # From here on something may be reserved, also where the client leaves before the answer comes.
        self._unspent.update(request_ids)
        try:
            await self._client.reserve_these(request_ids, deadline_seconds=self._wanted.deadline_seconds)
        except Fault:
            self._unspent.clear()
            raise

    async def _call(self, choice: int) -> Result:
        try:
            result = await self._ask(choice)
        except Fault as fault:
            if fault.charged:
                self._unspent.discard(self._ids[choice])
            self._heard.put_nowait(Heard(choice, fault))
            raise
        except asyncio.CancelledError:
            self._unspent.discard(self._ids[choice])
            raise
        self._unspent.discard(self._ids[choice])
        self._heard.put_nowait(Heard(choice, result))
        return result

    async def _ask(self, choice: int) -> Result:
        def heard(chunk: Chunk) -> None:
            self._heard.put_nowait(Heard(choice, chunk))

        try:
            return await self._client.send(
                self._wanted.request,
                request_id=self._ids[choice],
                deadline_seconds=self._wanted.deadline_seconds,
                heard=heard if self._wanted.listens else None,
                taken_back=not self._wanted.key.given,
            )
        except (BusError, NoAnswer) as lost:
            raise unreachable(lost) from None
        except Fault:
            raise
        except Exception as error:
            # Whatever went wrong, whoever waits hears of it.
            raise defect(error, "asking a target") from None
