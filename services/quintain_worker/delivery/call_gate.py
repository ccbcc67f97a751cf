"""Lets the calls of a worker run beside each other, or one of them alone: one that was lost with several workers."""

from __future__ import annotations

import asyncio


class GateVisit:
    """One call at the gate."""

    __slots__ = ("is_inside", "turn")

    def __init__(self) -> None:
        self.is_inside = False
        self.turn: asyncio.Future[None] | None = None


class CallGate:
    """Counts the calls that are inside: those that wait for their admission, and those that run.

    All targets of a worker share one gate, because a call that ends the process ends the calls of all of them. A call
    that is to be alone enters when all others have left, and none enters beside it. The others wait for one such call
    each, and enter before the next one, so that neither kind waits for ever.

    A call that runs may wait for others that the gate keeps out: those that its agent sends to this worker. So no call
    keeps others out, nor waits as the next to be alone, for more than ``max_wait_seconds``: then they enter.

    Example::

        visit = GateVisit()
        try:
            await call_gate.enter(visit, timeout_seconds=60)
            await call_gate.enter_alone(visit, timeout_seconds=60)
        finally:
            call_gate.leave(visit)
    """

    def __init__(self, max_wait_seconds: float) -> None:
        self._max_wait_seconds = max_wait_seconds
        self._inside = 0
        self._waiting: list[GateVisit] = []
        #: Those that are to be alone, in order of arrival. The first one is inside, or the next to enter.
        self._alone: list[GateVisit] = []
        self._next: GateVisit | None = None
        self._is_open = False

    async def enter(self, visit: GateVisit, timeout_seconds: float) -> None:
        """Enter, unless a call is or is to be alone: then after it, and after ``timeout_seconds`` at the latest."""
        if self._is_open or not self._alone:
            visit.is_inside = True
            self._inside += 1
        else:
            await self._wait(self._waiting, visit, min(timeout_seconds, self._max_wait_seconds))

    async def enter_alone(self, visit: GateVisit, timeout_seconds: float) -> None:
        """Leave, and enter when nothing else is inside, and after ``timeout_seconds`` at the latest."""
        self._inside -= 1
        visit.is_inside = False
        await self._wait(self._alone, visit, timeout_seconds)

    def leave(self, visit: GateVisit) -> None:
        """Leave, or stop waiting."""
        self._inside -= visit.is_inside
        visit.is_inside = False
        if visit in self._waiting:
            self._waiting.remove(visit)
        elif visit in self._alone:
            is_first = self._alone[0] is visit
            self._alone.remove(visit)
            if is_first:
                self._let_in_all(self._waiting)
        self._let_next_in()

    def open(self) -> None:
        """Let all calls in, now and from now on: the worker stops and starts none of them."""
        self._is_open = True
        self._let_in_all(self._waiting + self._alone)

    async def _wait(self, line: list[GateVisit], visit: GateVisit, timeout_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        visit.turn = loop.create_future()
        line.append(visit)
        timer = loop.call_later(0 if self._is_open else timeout_seconds, self._let_in, visit)
        self._let_next_in()
        try:
            await visit.turn
        finally:
            timer.cancel()

    def _let_next_in(self) -> None:
        """Let the first that is to be alone in, when nothing is inside or it has waited for the longest time."""
        first = self._alone[0] if self._alone else None
        if first is None or first.is_inside:
            return
        if not self._inside:
            self._let_in(first)
        elif self._next is not first:
            self._next = first
            asyncio.get_running_loop().call_later(self._max_wait_seconds, self._let_in, first)

    def _let_in_all(self, visits: list[GateVisit]) -> None:
        for visit in list(visits):
            self._let_in(visit)

    def _let_in(self, visit: GateVisit) -> None:
        """Let a call in that waits; one that has stopped waiting, or is inside, is left as it is."""
        if visit.turn is None or visit.turn.done():
            return
        visit.turn.set_result(None)
        visit.is_inside = True
        self._inside += 1
        if visit in self._waiting:
            self._waiting.remove(visit)
