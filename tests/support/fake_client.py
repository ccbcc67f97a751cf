"""A session without a fleet: the client's methods, with a budget that counts as the ledger does."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from quintain.client.client import Client
from quintain.contracts.fleet import QuotaList, QuotaState
from quintain.contracts.invoke import InvokeRequest, OutputMessage, Result, TokenUsage
from quintain.contracts.session import Info, OpenSession, SessionOpened, SessionState
from quintain.errors import BudgetExhausted, Fault, QuintainError

#: What a target answers, or the error that each of its calls ends with.
Answer = Callable[[InvokeRequest], Awaitable[str]] | QuintainError

#: An open session of a client that is told nothing more.
INFO = Info(
    session_id="session",
    target_name="a",
    max_calls=9,
    call_count=0,
    available_targets=["a"],
    token_usage=TokenUsage(),
    state=SessionState.OPEN,
    now=0,
)


async def echo(request: InvokeRequest) -> str:
    """Answers with the question."""
    return request.question or ""


@dataclass
class ChildSession:
    """A session that a grader was given."""

    request: OpenSession
    calls: int = 0
    #: The calls that are its own although it has not made them.
    reserved: int = 0


class FakeClient(Client):
    """One session. The same request id is the same call: charged once, answered alike, its fault too."""

    def __init__(self, answer: Answer = echo, *, max_calls: int = 1000, targets: tuple[str, ...] = ("bot",)) -> None:
        self.answer, self.max_calls, self.targets = answer, max_calls, targets
        self.used = 0
        #: The fingerprints that workers registered; and those with which they answer, where these are others.
        self.fingerprints = {name: f"fingerprint-of-{name}" for name in targets}
        self.answered_fingerprints: dict[str, str | None] = {}
        #: Since when workers serve a target differently; the time is 0.
        self.different_since: dict[str, int] = {}
        #: What the metadata service says of quotas, and how often it was asked.
        self.quotas: list[QuotaState] = []
        self.quotas_read = 0
        self.request_ids: list[str] = []
        self.requests: list[InvokeRequest] = []
        #: By target, the deadlines of its calls, in seconds.
        self.deadlines: dict[str | None, set[float]] = defaultdict(set)
        self.in_flight = self.max_in_flight = 0
        self.children: dict[str, ChildSession] = {}
        self.reserved_ids: set[str] = set()
        #: The conversations of which it was said that they are over.
        self.ended_conversations: list[str] = []
        self._outcomes: dict[str, Result | Fault] = {}
        self._numbers = itertools.count(1)

    async def send(
        self, request: InvokeRequest, *, request_id: str | None = None, deadline_seconds: float = 600.0, **_: object
    ) -> Result:
        assert request_id is not None
        self.deadlines[request.target].add(deadline_seconds)
        if request_id not in self._outcomes:
            self._outcomes[request_id] = await self._call(request, request_id)
        outcome = self._outcomes[request_id]
        if isinstance(outcome, Fault):
            raise outcome
        return outcome

    async def open_child(self, request: OpenSession) -> SessionOpened:
        reserved = (request.max_calls if request.reserve is True else request.reserve) or 0
        self._require_room(reserved)
        token = f"token-{next(self._numbers)}"
        self.children[token] = ChildSession(request, reserved=reserved)
        return SessionOpened(session_id=token, token=token)

    async def get_info(self, *, usage: bool = False) -> Info:
        info = self._info(self.targets[0], self.max_calls, self.used + self.reserved)
        return info.model_copy(update={"reserved": self.reserved})

    async def get_quotas(self) -> QuotaList:
        self.quotas_read += 1
        return QuotaList(quotas=self.quotas, now=0)

    async def read_session_info(self, token: str) -> Info:
        child = self.children[token]
        return self._info(child.request.default_target, child.request.max_calls or 0, child.calls, tokens=child.calls)

    async def close_child(self, token: str) -> Info:
        self.children[token].reserved = 0
        return await self.read_session_info(token)

    def child(self, token: str) -> Client:
        """The client of a session that was opened from this one."""
        return _ChildClient(self, token)

    @contextlib.asynccontextmanager
    async def connected(self, _: str) -> AsyncIterator[Client]:
        """This client, whatever the token is."""
        yield self

    async def reserve_ids(self, request_ids: Sequence[str], *, deadline_seconds: float = 600.0) -> int:
        new = {one for one in request_ids if one not in self._outcomes} - self.reserved_ids
        self._require_room(len(new))
        self.reserved_ids |= new
        return len(new)

    async def release(self, request_ids: Sequence[str]) -> None:
        self.reserved_ids -= set(request_ids)

    async def end_conversation(self, conversation_id: str) -> None:
        self.ended_conversations.append(conversation_id)

    @property
    def reserved(self) -> int:
        return len(self.reserved_ids) + sum(child.reserved for child in self.children.values())

    def _require_room(self, calls: int) -> None:
        if self.used + self.reserved + calls > self.max_calls:
            raise BudgetExhausted(f"Max calls exceeded (limit: {self.max_calls})")

    def spend(self, token: str, calls: int) -> None:
        """A grader called: its session and this one are charged, one token for each call."""
        child = self.children[token]
        child.reserved = max(0, child.reserved - calls)
        child.calls += calls
        self.used += calls

    async def _call(self, request: InvokeRequest, request_id: str) -> Result | Fault:
        self.reserved_ids.discard(request_id)
        self._require_room(1)
        self.used += 1
        self.requests.append(request)
        self.request_ids.append(request_id)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            if isinstance(self.answer, QuintainError):
                raise self.answer
            return self._result(request, await self.answer(request))
        except Fault as fault:
            self.used -= not fault.charged
            if fault.charged:
                return fault
            raise
        finally:
            self.in_flight -= 1

    def _result(self, request: InvokeRequest, text: str) -> Result:
        return Result(
            output=[OutputMessage(content=text)],
            token_usage=TokenUsage(input=10, output=2),
            target=request.target or self.targets[0],
            target_fingerprint={**self.fingerprints, **self.answered_fingerprints}.get(
                request.target or self.targets[0]
            ),
            duration_ms=5.0,
            call_count=self.used,
            max_calls=self.max_calls,
        )

    def _info(self, target: str, max_calls: int, used: int, *, tokens: int = 0) -> Info:
        return INFO.with_fields(
            target_name=target,
            max_calls=max_calls,
            call_count=used,
            available_targets=sorted(self.targets),
            token_usage=TokenUsage(input=tokens),
            target_fingerprints=dict(self.fingerprints),
            different_since=self.different_since or None,
        )


class _ChildClient(Client):
    """The session of a grader."""

    def __init__(self, parent: FakeClient, token: str) -> None:
        self._parent, self._token = parent, token

    async def get_info(self, *, usage: bool = False) -> Info:
        return await self._parent.read_session_info(self._token)

    async def close_session(self) -> Info:
        return await self._parent.close_child(self._token)
