"""The operations a token opens (``protocol.md`` §4), as a table: route, who may ask, what is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import TypeVar

from quintain.bus.base import Bus, Delivery
from quintain.contracts import discovery, metadata, operating
from quintain.contracts.message import Message
from quintain.contracts.token import SessionToken, same_secret
from quintain.errors import BadRequest, Unauthorized
from quintain.routes import (
    AMEND,
    CANCEL,
    CLOSE,
    DRAIN,
    INFO,
    LIST,
    OPEN,
    PAUSE,
    RELEASE,
    RESERVE,
    RESUME,
    SHOW,
    TARGETS,
    TOKEN_HEADER,
    WORKERS,
    Answer,
    Ask,
    Route,
)
from quintain.service import answer_to, at_work, reply
from quintain.telemetry.conventions import processed
from quintain.topology import METADATA, METADATA_QUEUE
from quintain_metadata import drains, reservations, sessions, spending, targets
from quintain_metadata.canceller import Canceller
from quintain_metadata.ledger import Ledger
from quintain_metadata.records import Moment
from quintain_metadata.sessions import Session
from quintain_metadata.steps import Steps

Returned = TypeVar("Returned")

#: What an operation does: given its question and the asker's session, None for the administrator.
Handler = Callable[[Moment, Ask, Session | None], Steps[Returned]]


class Who(Enum):
    """Whose token opens an operation."""

    ADMINISTRATOR = auto()
    SESSION = auto()
    EITHER = auto()

    def require(self, session: Session | None) -> None:
        """Raises `Unauthorized` or `BadRequest` where this one may not ask. None is the administrator."""
        if session is not None and self is Who.ADMINISTRATOR:
            raise Unauthorized
        if session is None and self is Who.SESSION:
            raise BadRequest("The admin token has no session of its own: use a session's token, or `show`")


class Operations:
    """Answers the metadata queue."""

    def __init__(self, bus: Bus, ledger: Ledger, canceller: Canceller, admin_sha256: bytes | None) -> None:
        self._bus, self._ledger, self._admin_sha256 = bus, ledger, admin_sha256
        self.canceller = canceller

    async def __call__(self, delivery: Delivery) -> None:
        """Answer one request."""
        # The queue is bound to the operations' keys alone: they are safe to name.
        with at_work(delivery, processed(METADATA.name, delivery.routing_key, METADATA_QUEUE.name)):
            answer = await answer_to(self._answer(delivery), f"answering {delivery.routing_key}")
            await reply(self._bus, delivery, answer)
            await delivery.ack()

    async def _answer(self, delivery: Delivery) -> Message:
        offered = delivery.headers.get(TOKEN_HEADER)
        text = offered if isinstance(offered, str) else ""
        is_admin = self._is_admin(text)
        # The token before everything else: its shape without any I/O, its truth with the operation.
        token = None if is_admin else SessionToken.parse(text)
        entry = OPERATIONS.get(delivery.routing_key)
        if entry is None:
            if token is not None:
                await self._ledger.do(lambda moment: sessions.prove(moment.now, token))
            known = ", ".join(OPERATIONS)
            raise BadRequest(f"type: there is no operation {delivery.routing_key!r}; there are {known}")
        return await entry(self, delivery, token)

    def _is_admin(self, offered: str) -> bool:
        return self._admin_sha256 is not None and same_secret(offered, self._admin_sha256)

    async def run(
        self,
        route: Route[Ask, Answer],
        who: Who,
        handler: Handler[Ask, Returned],
        delivery: Delivery,
        token: SessionToken | None,
    ) -> Returned:
        """Prove the token, then read the question, then run the handler, in one transaction."""

        def steps(moment: Moment) -> Steps[Returned]:
            session = None if token is None else (yield from sessions.prove(moment.now, token))
            who.require(session)
            ask = route.asks.from_wire(delivery.body or b"{}")
            return (yield from handler(moment, ask, session))

        return await self._ledger.do(steps)


def _info(moment: Moment, ask: metadata.AskInfo, session: Session | None) -> Steps[metadata.Info]:
    info = yield from sessions.info(moment.now, _own(session))
    if not ask.per_target:
        return info
    return info.model_copy(update={"per_target": (yield from spending.per_target(info.session_id))})


def _open(moment: Moment, ask: metadata.OpenSession, session: Session | None) -> Steps[metadata.SessionOpened]:
    return (yield from sessions.open_session(moment.now, ask, SessionToken.mint(), session))


def _amend(moment: Moment, ask: metadata.AmendSession, _: Session | None) -> Steps[metadata.Info]:
    if ask.state is metadata.SessionState.CLOSED:
        closing = yield from sessions.existing(ask.session_id)
        yield from reservations.release_all(moment, closing)
    return (yield from sessions.amend(moment.now, ask))


def _close(moment: Moment, _: metadata.CloseSession, session: Session | None) -> Steps[metadata.Info]:
    closed = metadata.AmendSession(session_id=_own(session).id, state=metadata.SessionState.CLOSED)
    return (yield from _amend(moment, closed, session))


def _reserve(moment: Moment, ask: metadata.ReserveCalls, session: Session | None) -> Steps[metadata.CallsReserved]:
    granted = yield from reservations.reserve(moment.now, _own(session), ask.request_ids, ask.deadline)
    return metadata.CallsReserved(granted=granted)


def _release(moment: Moment, ask: metadata.ReleaseCalls, session: Session | None) -> Steps[metadata.CallsReleased]:
    released = yield from reservations.release(moment, _own(session), ask.request_ids)
    return metadata.CallsReleased(released=released)


def _list(moment: Moment, ask: metadata.ListSessions, _: Session | None) -> Steps[metadata.SessionList]:
    return (yield from sessions.page(moment.now, ask))


def _show(moment: Moment, ask: metadata.ShowSession, _: Session | None) -> Steps[metadata.Info]:
    return (yield from sessions.show(moment.now, ask.session_id))


def _targets(moment: Moment, _: discovery.ListTargets, __: Session | None) -> Steps[discovery.TargetList]:
    return (yield from targets.registered(moment.now))


def _pause(moment: Moment, ask: operating.PauseTarget, _: Session | None) -> Steps[operating.TargetPause]:
    return (yield from targets.pause(moment.now, ask))


def _resume(moment: Moment, ask: operating.ResumeTarget, _: Session | None) -> Steps[operating.TargetPause]:
    return (yield from targets.resume(moment.now, ask))


def _workers(moment: Moment, _: operating.ListWorkers, __: Session | None) -> Steps[operating.WorkerList]:
    return (yield from drains.registered(moment.now))


def _drain(moment: Moment, ask: operating.DrainWorker, _: Session | None) -> Steps[operating.WorkerList]:
    return (yield from drains.ask(moment.now, ask.worker_id))


def _proven(_: Moment, ask: Ask, session: Session | None) -> Steps[tuple[Ask, Session]]:
    """Nothing in this transaction: an operation that takes several goes on from here."""
    yield from ()
    return ask, _own(session)


def _own(session: Session | None) -> Session:
    assert session is not None, "the table admits a session's token alone"
    return session


_Bound = Callable[[Operations, Delivery, SessionToken | None], Awaitable[Message]]


def _entry(route: Route[Ask, Answer], who: Who, handler: Handler[Ask, Answer]) -> _Bound:
    async def run(operations: Operations, delivery: Delivery, token: SessionToken | None) -> Message:
        return await operations.run(route, who, handler, delivery, token)

    return run


async def _cancel(operations: Operations, delivery: Delivery, token: SessionToken | None) -> Message:
    ask, session = await operations.run(CANCEL, Who.SESSION, _proven, delivery, token)
    return await operations.canceller.cancel(session, ask.request_ids)


OPERATIONS: dict[str, _Bound] = {
    INFO.key: _entry(INFO, Who.SESSION, _info),
    OPEN.key: _entry(OPEN, Who.EITHER, _open),
    AMEND.key: _entry(AMEND, Who.ADMINISTRATOR, _amend),
    CLOSE.key: _entry(CLOSE, Who.SESSION, _close),
    RESERVE.key: _entry(RESERVE, Who.SESSION, _reserve),
    RELEASE.key: _entry(RELEASE, Who.SESSION, _release),
    CANCEL.key: _cancel,
    LIST.key: _entry(LIST, Who.ADMINISTRATOR, _list),
    SHOW.key: _entry(SHOW, Who.ADMINISTRATOR, _show),
    TARGETS.key: _entry(TARGETS, Who.ADMINISTRATOR, _targets),
    PAUSE.key: _entry(PAUSE, Who.ADMINISTRATOR, _pause),
    RESUME.key: _entry(RESUME, Who.ADMINISTRATOR, _resume),
    WORKERS.key: _entry(WORKERS, Who.ADMINISTRATOR, _workers),
    DRAIN.key: _entry(DRAIN, Who.ADMINISTRATOR, _drain),
}
