"""The calls that this worker has in hand, by session and request id: who joins one, and which are taken back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType

from quintain.contracts.invoke import Result
from quintain.contracts.ledger import CallKey
from quintain.errors import Cancelled, Overloaded

#: So many duplicates of one call wait here; one more is `overloaded` (``design.md`` §3.3).
MOST_JOINED = 4


@dataclass(frozen=True, slots=True)
class Question:
    """What a delivery asks, and in whose name. Only a delivery that asks exactly the same is a duplicate: whatever
    differs is for the ledger to judge. ``token`` is the whole token, ``problem`` what is wrong with the request."""

    token: str
    session_id: str
    request_id: str
    target: str
    body_sha256: str
    problem: str | None

    @property
    def key(self) -> tuple[str, str]:
        """The call's key."""
        return self.session_id, self.request_id


class Abortable:
    """What is done inside ends where it stands when it is aborted. Raises `Cancelled` then."""

    def __init__(self) -> None:
        # A timeout that comes when it is asked for: it cancels what is inside, and nothing that follows.
        self._scope = asyncio.timeout(None)
        self._inside = False

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        self._inside = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = False
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            raise Cancelled from None

    def abort(self) -> None:
        """End what is done inside, if anything is."""
        if self._inside:
            self._inside = False
            self._scope.reschedule(asyncio.get_running_loop().time())


class Run:
    """One call in this worker's hands, from its arrival until it is settled."""

    def __init__(self, question: Question) -> None:
        self.question = question
        #: The ledger has granted it, so that it counts until it is settled otherwise.
        self.granted = False
        self._joined = 0
        self._ended: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()
        self._abortable: Abortable | None = None

    @property
    def ended(self) -> bool:
        """Whether what became of it is known, and settled."""
        return self._ended.done()

    def end(self, result: Result | None) -> None:
        """It is settled: with this result, or otherwise. The first word counts."""
        if not self._ended.done():
            self._ended.set_result(result)

    async def join(self, timeout_seconds: float) -> Result | None:
        """Its result, marked as replayed, once it is settled; None when it ended otherwise.

        Raises `Overloaded` where too many wait already, and `TimeoutError`.
        """
        if self._joined >= MOST_JOINED:
            raise Overloaded(f"{MOST_JOINED} duplicates of this call are waiting already", retry_after_ms=1000)
        self._joined += 1
        try:
            # Not awaited itself: whoever is cancelled while it waits would cancel it for everybody.
            await asyncio.wait([self._ended], timeout=timeout_seconds)
        finally:
            self._joined -= 1
        if not self._ended.done():
            raise TimeoutError
        result = self._ended.result()
        return None if result is None else result.model_copy(update={"replayed": True})

    def abortable(self) -> Abortable:
        """What is done inside ends where it stands when the call is taken back."""
        self._abortable = Abortable()
        return self._abortable

    def take_back(self) -> None:
        """Abort it, unless somebody else waits for it, or it is past aborting."""
        if self._abortable is not None and not self._joined:
            self._abortable.abort()


class Running:
    """The calls in hand."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], list[Run]] = {}

    def of(self, question: Question) -> Run | None:
        """The run that a delivery with this question would join."""
        runs = self._runs.get(question.key, ())
        return next((run for run in runs if run.question == question and not run.ended), None)

    @contextlib.contextmanager
    def begin(self, question: Question) -> Iterator[Run]:
        """Have this call in hand; whoever has joined it is let go at the end at the latest."""
        run = Run(question)
        runs = self._runs.setdefault(question.key, [])
        runs.append(run)
        try:
            yield run
        finally:
            runs.remove(run)
            if not runs:
                del self._runs[question.key]
            run.end(None)

    def take_back(self, calls: Iterable[CallKey]) -> None:
        """Abort those of these calls that are here."""
        for call in calls:
            for run in self._runs.get((call.session_id, call.request_id), ()):
                run.take_back()
