"""Storing the body of a request in pieces: what is sent, what is sent again, and what ends it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pytest

from quintain.client import contents
from quintain.client.contents import store_body
from quintain.contracts.contents import ContentStatus, PutContent, decode_piece
from quintain.contracts.invoke import NO_TOKENS
from quintain.contracts.limits import CONTENT_PIECE_BYTES, MAX_BODY_BYTES
from quintain.contracts.session import Info, SessionState
from quintain.errors import BudgetUnavailable, Expired, Fault, NoAnswer, Overloaded, PayloadTooLarge, QueueFull

BODY = bytes(range(256)) * 4096 * 2 + b"the rest"


@dataclass
class ScriptedStore:
    """A metadata service that keeps pieces; ``errors`` are raised before the next requests are looked at."""

    limit: int | None = len(BODY)
    errors: list[Exception] = field(default_factory=list)
    pieces: dict[int, bytes] = field(default_factory=dict)
    requests: list[PutContent] = field(default_factory=list)

    async def read_info(self, _: float) -> Info:
        return Info(
            session_id="s",
            target_name="a",
            max_calls=1,
            call_count=0,
            available_targets=[],
            token_usage=NO_TOKENS,
            state=SessionState.OPEN,
            max_body_bytes=self.limit,
            now=0,
        )

    async def put(self, request: PutContent) -> ContentStatus:
        self.requests.append(request)
        if self.errors:
            raise self.errors.pop(0)
        if request.piece is not None:
            self.pieces[request.piece] = decode_piece(request.data or "")
            return ContentStatus(complete=False)
        missing = [number for number in range(-(-request.size // CONTENT_PIECE_BYTES)) if number not in self.pieces]
        return ContentStatus(complete=not missing, missing=missing)

    async def store(self, *, timeout_seconds: float = 30) -> None:
        reference = await store_body(self.put, self.read_info, BODY, "r1", 1000, timeout_seconds)
        assert (reference.sha256, reference.size) == (hashlib.sha256(BODY).hexdigest(), len(BODY))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "FULL_QUEUE_PAUSE_SECONDS", 0)


async def test_all_pieces_are_sent_once_and_only_those_that_are_missing() -> None:
    store = ScriptedStore(pieces={1: BODY[CONTENT_PIECE_BYTES : 2 * CONTENT_PIECE_BYTES]})
    await store.store()
    assert b"".join(store.pieces[number] for number in sorted(store.pieces)) == BODY
    sent = [request.piece for request in store.requests if request.piece is not None]
    assert sorted(sent) == [0, 2, 3, 4]
    store.requests.clear()
    await store.store()
    assert [request.piece for request in store.requests] == [None]
    assert {(request.request_id, request.deadline) for request in store.requests} == {("r1", 1000)}


async def test_a_full_queue_is_asked_again() -> None:
    store = ScriptedStore(errors=[QueueFull("full"), QueueFull("full")])
    await store.store()
    assert b"".join(store.pieces[number] for number in sorted(store.pieces)) == BODY


@pytest.mark.parametrize(
    ("error", "raised"),
    [(Overloaded("The content store is full"), Overloaded), (NoAnswer("nobody"), BudgetUnavailable)],
)
async def test_what_ends_it_is_a_fault(error: Exception, raised: type[Fault]) -> None:
    with pytest.raises(raised):
        await ScriptedStore(errors=[error]).store()
    store = ScriptedStore(pieces={0: b""})
    store.errors = []

    async def refuse_pieces(request: PutContent) -> ContentStatus:
        if request.piece is not None:
            raise error
        return ContentStatus(complete=False, missing=[1, 2, 3])

    with pytest.raises(raised):
        await store_body(refuse_pieces, store.read_info, BODY, "r1", 1000, 30)


async def test_the_deadline_ends_it() -> None:
    async def never_complete(request: PutContent) -> ContentStatus:
        raise QueueFull("full")

    with pytest.raises(Expired):
        await store_body(never_complete, ScriptedStore().read_info, BODY, "r1", 1000, 0.05)


@pytest.mark.parametrize("limit", [None, len(BODY) - 1])
async def test_what_the_session_may_not_send_is_not_begun(limit: int | None) -> None:
    store = ScriptedStore(limit=limit)
    with pytest.raises(PayloadTooLarge, match=f"{len(BODY)} bytes.*{MAX_BODY_BYTES}.*QUINTAIN_CONTENT_STORE"):
        await store.store()
    assert not store.requests
