"""The processes of one target, each of which serves one conversation at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from quintain.contracts.agents import Turn
from quintain.errors import ConversationLost, Overloaded
from quintain.programs.agent_urls import AgentUrl
from quintain.programs.line_program import LineProgram
from quintain.runtime.concurrency import start_task

log = logging.getLogger(__name__)

#: How long the first turn of a conversation waits for a free process, in seconds.
FREE_SECONDS = 30.0

#: A conversation that has waited so long for its next turn, in seconds, makes room for a new one that waits.
HELD_SECONDS = 30.0

#: How often those that wait for a free process look for one that has waited so long, in seconds.
LOOK_SECONDS = 1.0

#: How long a program may take to end by itself after its stdin was closed, in seconds.
END_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTerms:
    """How many conversations there may be at a time, and what becomes of their processes.

    A conversation ends when no turn has come for ``idle_seconds``. ``end_line`` is what a process is told then, which
    takes the next conversation; without one, its stdin is closed, and each conversation has a process of its own.
    """

    size: int
    idle_seconds: float
    end_line: Callable[[str], bytes] | None = None


class PoolProcess:
    """A process of the pool: ``program`` runs, and ``conversation_id`` is that of the conversation which it serves.

    ``url`` is that of its calls, if it makes any.
    """

    def __init__(self, program: LineProgram, url: AgentUrl | None, stack: AsyncExitStack) -> None:
        self.program, self.url, self._stack = program, url, stack
        self.conversation_id, self.turns, self.is_last = "", 0, False
        self.held_since = 0.0
        self.expiry: asyncio.TimerHandle | None = None

    async def end(self) -> None:
        """End the process, with all that it started."""
        await self._stack.aclose()


#: Starts a process; what belongs to it is pushed on the stack. Raises `CannotStart`, or what the turn fails with.
StartProcess = Callable[[AsyncExitStack], Coroutine[None, None, tuple[LineProgram, AgentUrl | None]]]


class ConversationPool:
    """Starts processes as they are needed, and keeps those whose conversation may go on.

    Example::

        async with pool.turn(conversation_id, turn, wait_seconds=30) as process:
            process.program.send(line)
    """

    def __init__(self, name: str, start: StartProcess, terms: PoolTerms) -> None:
        self._name, self._start, self._terms = name, start, terms
        self._free = asyncio.Semaphore(terms.size)
        self._held: dict[str, PoolProcess] = {}
        self._waiting: list[PoolProcess] = []
        self._ending: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def turn(self, conversation_id: str, turn: Turn | None, *, wait_seconds: float) -> AsyncIterator[PoolProcess]:
        """Take the process of a conversation, or one for a new conversation, for one turn.

        The process is ended if the block raises. The conversation ends with this turn where the block says so
        (`PoolProcess.is_last`), it is its last, or there is no ``turn``. Raises `ConversationLost`, `Overloaded` if no
        process is free within ``wait_seconds``, and what starting one raises.
        """
        if turn is None or turn.number == 1:
            process = await self._begin(conversation_id, wait_seconds)
        else:
            process = self._take(conversation_id, turn)
        try:
            yield process
        except BaseException:
            # A task of its own: a second cancellation must not leave the process running.
            await asyncio.wait((self._spawn(self._discard(process)),))
            raise
        process.turns += 1
        if turn is None or turn.last or process.is_last:
            self._end(process)
        else:
            # The last one is the one that has waited shortest.
            self._held[conversation_id] = process
            loop = asyncio.get_running_loop()
            process.held_since = loop.time()
            process.expiry = loop.call_later(self._terms.idle_seconds, self.end_conversation, conversation_id)

    def end_conversation(self, conversation_id: str) -> None:
        """End a conversation that has no running turn."""
        if (process := self._held.pop(conversation_id, None)) is not None:
            self._end(process)

    async def close(self) -> None:
        """End all conversations and processes."""
        for conversation_id in list(self._held):
            self.end_conversation(conversation_id)
        for process in self._waiting:
            self._spawn(process.end())
        self._waiting.clear()
        while self._ending:
            await asyncio.gather(*self._ending, return_exceptions=True)

    def _take(self, conversation_id: str, turn: Turn) -> PoolProcess:
        process = self._held.pop(conversation_id, None)
        if process is None:
            raise ConversationLost(f"{self._name}: this worker holds no such conversation; begin it again")
        self._stop_expiry(process)
        if not process.program.is_quiet or process.turns != turn.number - 1:
            why = "its program has ended" if process.turns == turn.number - 1 else "it is at another turn"
            self._spawn(self._discard(process))
            raise ConversationLost(f"{self._name}: the conversation cannot go on: {why}; begin it again")
        return process

    async def _begin(self, conversation_id: str, wait_seconds: float) -> PoolProcess:
        # The caller begins it again: its first turn is repeated.
        self.end_conversation(conversation_id)
        try:
            async with asyncio.timeout(min(wait_seconds, FREE_SECONDS)):
                while not await self._is_free():
                    self._end_longest_held()
        except TimeoutError:
            raise Overloaded(f"{self._name}: all {self._terms.size} processes are in conversations") from None
        try:
            process = await self._unused()
        except BaseException:
            self._free.release()
            raise
        process.conversation_id, process.turns, process.is_last = conversation_id, 0, False
        return process

    async def _is_free(self) -> bool:
        """Take a place, within a while; returns whether there is one."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await self._free.acquire()
        except TimeoutError:
            return False

    def _end_longest_held(self) -> None:
        """End the conversation that has waited longest for its next turn, if that is long."""
        longest = next(iter(self._held.items()), None)
        if longest is not None and asyncio.get_running_loop().time() - longest[1].held_since >= HELD_SECONDS:
            self.end_conversation(longest[0])

    async def _unused(self) -> PoolProcess:
        while self._waiting:
            process = self._waiting.pop()
            if process.program.is_quiet:
                return process
            await process.end()
        stack = AsyncExitStack()
        try:
            program, url = await self._start(stack)
        except BaseException:
            await stack.aclose()
            raise
        return PoolProcess(program, url, stack)

    def _end(self, process: PoolProcess) -> None:
        self._stop_expiry(process)
        if self._terms.end_line is not None and process.program.is_quiet:
            process.program.send(self._terms.end_line(process.conversation_id))
            self._waiting.append(process)
            self._free.release()
        else:
            self._spawn(self._finish(process))

    async def _finish(self, process: PoolProcess) -> None:
        with contextlib.suppress(Exception):
            await process.program.finish(END_SECONDS)
        await self._discard(process)

    async def _discard(self, process: PoolProcess) -> None:
        try:
            await process.end()
        finally:
            self._free.release()

    @staticmethod
    def _stop_expiry(process: PoolProcess) -> None:
        if process.expiry is not None:
            process.expiry.cancel()
            process.expiry = None

    def _spawn(self, ending: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return start_task(self._ending, ending, name=f"end a process of {self._name}")
