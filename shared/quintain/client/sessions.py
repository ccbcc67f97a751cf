"""What a process keeps of the sessions that it calls for: default targets, latest answered calls, sizes of groups."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from quintain.bus.base import Delivery, HeaderValue
from quintain.contracts.group import MAX_DEADLINE_SPREAD_MS, MAX_GROUP_ITEMS, count_fitting
from quintain.contracts.headers import ACCEPT_HEADER, DEADLINE_HEADER, TOKEN_HEADER
from quintain.contracts.session import MAX_ANSWERED_IDS, Info
from quintain.contracts.values import sanitize_request_id
from quintain.errors import BusError, Fault, NoAnswer
from quintain.rpc.requests import GroupedRequest, RpcClient, RpcRequest
from quintain.runtime.concurrency import BatchSender, start_task
from quintain.timings import Clock

#: How many sessions' default targets are kept; the oldest are forgotten first.
MAX_SESSIONS = 10_000

#: How long a call waits while another one asks for its session's default target, in seconds.
ASKED_SECONDS = 1.0


class AnsweredCalls:
    """The latest calls that were answered, until a request for their session's information names them."""

    def __init__(self) -> None:
        self._calls: deque[tuple[str, str]] = deque(maxlen=MAX_ANSWERED_IDS)

    def add(self, session_id: str, request_id: str) -> None:
        """Add a call; an invalid request id, which no ledger has, is left out."""
        if request_id == sanitize_request_id(request_id):
            self._calls.append((session_id, request_id))

    def take(self, session_id: str) -> list[str]:
        """Remove the calls of a session, and return their request ids."""
        taken = [request_id for answered_session_id, request_id in self._calls if answered_session_id == session_id]
        if taken:
            self._calls = deque((call for call in self._calls if call[0] != session_id), MAX_ANSWERED_IDS)
        return taken


class DefaultTargets:
    """The default target of each session whose information was read: a call that names none goes to its queue."""

    def __init__(self) -> None:
        self._targets: dict[str, str] = {}
        #: Session id → set once the request for its information has ended.
        self._asked: dict[str, asyncio.Event] = {}

    def note(self, info: Info) -> None:
        """Record the default target that a session's information names."""
        self._targets[info.session_id] = info.target_name
        if len(self._targets) > MAX_SESSIONS:
            del self._targets[next(iter(self._targets))]

    def forget(self, session_id: str) -> None:
        """Forget the default target of a session, so that it is asked for again."""
        self._targets.pop(session_id, None)

    async def resolve(self, session_id: str, read_info: Callable[[], Awaitable[Info]]) -> str | None:
        """Return a session's default target; one that is not known is asked for.

        None if it cannot be learnt, or not soon: such a call goes to the metadata service, which knows the target.
        """
        if session_id in self._targets:
            return self._targets[session_id]
        if (asked := self._asked.get(session_id)) is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), ASKED_SECONDS)
        else:
            asked = self._asked[session_id] = asyncio.Event()
            # The call itself gets the fault.
            with contextlib.suppress(Fault, BusError, NoAnswer):
                try:
                    self.note(await read_info())
                finally:
                    del self._asked[session_id]
                    asked.set()
        return self._targets.get(session_id)


#: A group has at most as many calls as a worker's slots end in this time, in milliseconds: its first call would be
#: answered that much later than one sent alone, if the calls of a group were run one after another.
GROUP_DURATION_MS = 50.0

#: Where that is less, a group still has this part of a worker's slots.
GROUP_SHARE = 1 / 8

#: The part of a new duration in the average of a target.
NEW_DURATION_SHARE = 0.1

#: How long the answer to `info` is used, in seconds: workers with other numbers of slots may have started since.
INFO_SECONDS = 60.0


#: What the requests of a group have in common: the session, the messages besides the reply that they want, the target,
#: and about the same deadline.
_GroupKey = tuple[HeaderValue, HeaderValue, str, int]


class CallGroups:
    """Sends calls in groups, of the size that suits their target; several transports of one `RpcClient` may share it.

    No group is sent to a target before `learn` was called with an `Info` that has its slots. A call goes out at once
    while none to its target is under way, otherwise together with what has gathered when the broker has confirmed the
    message before; as many as a message may have go at once. A call whose caller waits no more by then is not sent.
    """

    def __init__(self, rpc_client: RpcClient) -> None:
        self._rpc_client = rpc_client
        self._batches = BatchSender[_GroupKey, GroupedRequest](self._send, full_at_once=True, count=_count_requests)
        #: Target → the slots of one of its workers.
        self._slots: dict[str, int] = {}
        self._asking: set[asyncio.Task[None]] = set()
        #: Target → the average time that a call takes at its provider, in milliseconds.
        self._durations_ms: dict[str, float] = {}
        #: Target → when `info` was last asked about it, on the loop's clock.
        self._asked_at: dict[str, float] = {}

    def learn(self, info: Info) -> None:
        """Use what this answer says of the targets that the session may call."""
        now = asyncio.get_running_loop().time()
        self._asked_at = {name: at for name, at in self._asked_at.items() if now - at <= INFO_SECONDS}
        for target in info.available_targets:
            self._slots.pop(target, None)
            self._asked_at[target] = now
        self._slots.update(info.group_slots or {})

    def learn_soon(self, target: str, read_info: Callable[[], Awaitable[Info]]) -> asyncio.Task[None] | None:
        """Start ``read_info``, which calls `learn`, where nothing is known of this target or what is known is too old.

        Returns its task, which raises nothing; the target is not asked about again for a while, whatever comes of it.
        """
        loop = asyncio.get_running_loop()
        if loop.time() - self._asked_at.get(target, -math.inf) <= INFO_SECONDS:
            return None
        self._asked_at[target] = loop.time()
        return start_task(self._asking, self._ask(read_info), name="read info")

    async def _ask(self, read_info: Callable[[], Awaitable[Info]]) -> None:
        with contextlib.suppress(Fault, BusError, NoAnswer):
            await read_info()

    def note_duration(self, target: str, duration_ms: float) -> None:
        """Note how long a call took at its provider."""
        average = self._durations_ms.get(target, duration_ms)
        self._durations_ms[target] = average + NEW_DURATION_SHARE * (duration_ms - average)

    def max_calls(self, target: str) -> int:
        """Return how many calls a group for this target may have; 1 where it takes none."""
        slots = self._slots.get(target)
        if slots is None:
            return 1
        duration_ms = self._durations_ms.get(target, math.inf)
        quick = MAX_GROUP_ITEMS if duration_ms <= 0 else slots * GROUP_DURATION_MS / duration_ms
        return max(1, min(MAX_GROUP_ITEMS, int(max(quick, slots * GROUP_SHARE))))

    def add(self, request: RpcRequest, correlation_id: str, reply: asyncio.Future[Delivery], *, max_calls: int) -> None:
        """Publish a request in a group of at most ``max_calls``, as `quintain.rpc.requests.PublishLater` says."""
        deadline = request.headers.get(DEADLINE_HEADER)
        interval = deadline // MAX_DEADLINE_SPREAD_MS if isinstance(deadline, int) else 0
        key = (request.headers.get(TOKEN_HEADER), request.headers.get(ACCEPT_HEADER), request.key, interval)
        self._batches.add(key, GroupedRequest(request, correlation_id, reply), max_batch=max_calls)

    async def _send(self, _: _GroupKey, requests: list[GroupedRequest]) -> None:
        try:
            await self._rpc_client.publish_together(requests, partial(self._slots.pop, requests[0].request.key, None))
        except Exception as error:
            for request in requests:
                if not request.reply.done():
                    request.reply.set_exception(error)


def _count_requests(requests: Sequence[GroupedRequest]) -> int:
    return count_fitting(len(request.item) for request in requests)


class Sessions:
    """What a process keeps of the sessions that it calls for, and the metadata service's ``clock``."""

    def __init__(self, rpc_client: RpcClient, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.answered, self.default_targets, self.groups = AnsweredCalls(), DefaultTargets(), CallGroups(rpc_client)
