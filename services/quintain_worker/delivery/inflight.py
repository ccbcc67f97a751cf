"""The calls in flight in this worker, by session and request id: duplicates wait for them, cancellations abort them."""

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
MAX_WAITING_DUPLICATES = 4


@dataclass(frozen=True, slots=True)
class CallIdentity:
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


class AbortScope:
    """What is done inside ends where it stands when it is aborted. Raises `Cancelled` then."""

    def __init__(self) -> None:
        # A timeout that comes when it is asked for: it cancels what is inside, and nothing that follows.
        self._timeout = asyncio.timeout(None)
        self._is_active = False

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._is_active = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_active = False
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise Cancelled from None

    def abort(self) -> None:
        """End what is done inside, if anything is."""
        if self._is_active:
            self._is_active = False
            self._timeout.reschedule(asyncio.get_running_loop().time())


class InflightCall:
    """One call in this worker's hands, from its arrival until it is settled."""

    def __init__(self, identity: CallIdentity) -> None:
        self.identity = identity
        #: The ledger has granted it, so that it counts until it is settled otherwise.
        self.is_granted = False
        self._waiting_duplicates = 0
        self._result: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()
        self._abort_scope: AbortScope | None = None

    @property
    def is_settled(self) -> bool:
        """Whether what became of it is known, and settled."""
        return self._result.done()

    def settle(self, result: Result | None) -> None:
        """It is settled: with this result, or otherwise. The first word counts."""
        if not self._result.done():
            self._result.set_result(result)

    async def wait_for_result(self, timeout_seconds: float) -> Result | None:
        """Its result, marked as replayed, once it is settled; None when it ended otherwise.

        Raises `Overloaded` where too many wait already, and `TimeoutError`.
        """
        if self._waiting_duplicates >= MAX_WAITING_DUPLICATES:
            raise Overloaded(
                f"{MAX_WAITING_DUPLICATES} duplicates of this call are waiting already", retry_after_ms=1000
            )
        self._waiting_duplicates += 1
        try:
            # Not awaited itself: whoever is cancelled while it waits would cancel it for everybody.
            await asyncio.wait([self._result], timeout=timeout_seconds)
        finally:
            self._waiting_duplicates -= 1
        if not self._result.done():
            raise TimeoutError
        result = self._result.result()
        return None if result is None else result.model_copy(update={"replayed": True})

    def abort_scope(self) -> AbortScope:
        """What is done inside ends where it stands when the call is taken back."""
        self._abort_scope = AbortScope()
        return self._abort_scope

    def abort(self) -> None:
        """Abort it, unless somebody else waits for it, or it is past aborting."""
        if self._abort_scope is not None and not self._waiting_duplicates:
            self._abort_scope.abort()


class InflightCalls:
    """The calls in hand."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], list[InflightCall]] = {}

    def find(self, identity: CallIdentity) -> InflightCall | None:
        """The run that a delivery with this question would join."""
        calls = self._calls.get(identity.key, ())
        return next((call for call in calls if call.identity == identity and not call.is_settled), None)

    @contextlib.contextmanager
    def track(self, identity: CallIdentity) -> Iterator[InflightCall]:
        """Have this call in hand; whoever has joined it is let go at the end at the latest."""
        call = InflightCall(identity)
        calls = self._calls.setdefault(identity.key, [])
        calls.append(call)
        try:
            yield call
        finally:
            calls.remove(call)
            if not calls:
                del self._calls[identity.key]
            call.settle(None)

    def abort(self, keys: Iterable[CallKey]) -> None:
        """Abort those of these calls that are here."""
        for key in keys:
            for inflight_call in self._calls.get((key.session_id, key.request_id), ()):
                inflight_call.abort()
