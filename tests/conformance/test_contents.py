"""The content store, over every store: a folder, and the ledger's own database."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import stat
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path

import pytest

from quintain.contracts.contents import ContentStatus, count_pieces, decode_piece, encode_piece
from quintain.contracts.limits import CONTENT_PIECE_BYTES, MAX_BODY_BYTES, MAX_CONTENT_BYTES
from quintain.contracts.session import SessionOpened
from quintain.errors import (
    BadRequest,
    BudgetExhausted,
    ConfigError,
    Expired,
    Fault,
    Overloaded,
    PayloadTooLarge,
    Unauthorized,
)
from quintain.settings import ContentSettings
from quintain.timings import DEFAULT_TIMINGS
from quintain.topology import LEDGER
from quintain_metadata.contents.base import ContentStore
from quintain_metadata.contents.factory import open_content_store
from quintain_metadata.contents.folder import FolderContentStore
from quintain_metadata.contents.rows import LedgerContentStore
from quintain_metadata.ledger.base import execute
from quintain_metadata.ledger.factory import open_ledger
from support.ledger_driver import admit_request
from support.metadata_service import RunningMetadataService, run_metadata_service

#: The most that all contents of a test may have together: four pieces.
MAX_STORED = 4 * CONTENT_PIECE_BYTES

#: Two pieces, the second one shorter.
BODY = secrets.token_bytes(CONTENT_PIECE_BYTES + 1000)
SHA256 = hashlib.sha256(BODY).hexdigest()

TIMINGS = DEFAULT_TIMINGS.scaled(0.2)


@dataclass(frozen=True)
class Contents:
    """A metadata service with a content store, spoken to as a client and as a worker."""

    metadata: RunningMetadataService
    store: ContentStore

    async def session(self, **fields: object) -> SessionOpened:
        return await self.metadata.ledger_driver.open_session(max_body_bytes=MAX_STORED, **fields)

    async def put(self, session: SessionOpened, request_id: str = "r1", body: bytes = BODY, **fields: object) -> bool:
        """One request about this body; returns whether it is complete."""
        return (await self.status(session, request_id, body, **fields)).complete

    async def status(
        self, session: SessionOpened, request_id: str = "r1", body: bytes = BODY, **fields: object
    ) -> ContentStatus:
        request = {"requestId": request_id, "sha256": hashlib.sha256(body).hexdigest(), "size": len(body), **fields}
        answer = await self.metadata.call_operation("put_content", session.token, request)
        return ContentStatus.model_validate(answer)

    async def store_all(self, session: SessionOpened, request_id: str = "r1", body: bytes = BODY) -> None:
        for number in range(count_pieces(len(body))):
            await self.put(session, request_id, body, piece=number, data=piece_data(body, number))
        assert await self.put(session, request_id, body)

    async def admit(self, session: SessionOpened, request_id: str = "r1", incarnation: str = "w1") -> str:
        """Admit the call; returns its attempt's id."""
        admit = admit_request(session, request_id, body_sha256=SHA256, body_bytes=len(BODY))
        await self.metadata.ledger_driver.admit(admit, incarnation)
        return admit.attempt_id

    async def get(
        self, session: SessionOpened, attempt_id: str, piece: int, *, request_id: str = "r1", incarnation: str = "w1"
    ) -> bytes:
        request = {
            "sessionId": session.session_id,
            "requestId": request_id,
            "attemptId": attempt_id,
            "incarnation": incarnation,
            "piece": piece,
        }
        answer = await self.metadata.call(LEDGER, "get_content", None, request)
        return decode_piece(str(answer["data"]))

    async def rows(self) -> list[str]:
        rows = await self.metadata.ledger_driver.ledger.transact(lambda _: execute("SELECT id FROM content"))
        return [row[0] for row in rows]

    async def wait_until_deleted(self, content_id: str) -> None:
        async with asyncio.timeout(30):
            while await self.rows():
                await asyncio.sleep(0.05)
        assert not await self.store.piece_numbers(content_id)


def piece_data(body: bytes, number: int) -> str:
    return encode_piece(body[number * CONTENT_PIECE_BYTES : (number + 1) * CONTENT_PIECE_BYTES])


@pytest.fixture(params=["folder", "sqlite rows", "postgresql"])
async def contents(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Contents]:
    is_postgres = request.param == "postgresql"
    ledger = await open_ledger(request.getfixturevalue("fresh_postgres_url") if is_postgres else "sqlite://")
    try:
        # Rows of SQLite are not offered to users; here they show that the statements are right without a server.
        store = (
            LedgerContentStore(ledger, MAX_STORED)
            if request.param == "sqlite rows"
            else open_content_store(
                ContentSettings(store="postgresql" if is_postgres else str(tmp_path / "store"), max_bytes=MAX_STORED),
                ledger,
            )
        )
        assert store is not None
        async with run_metadata_service(TIMINGS, ledger=ledger, content_store=store) as metadata:
            await metadata.ledger_driver.register("a", incarnation="w1")
            await metadata.ledger_driver.register("a", incarnation="w2")
            yield Contents(metadata, store)
    finally:
        await ledger.close()


async def refusal(work: Awaitable[object], kind: type[Fault]) -> str:
    with pytest.raises(kind) as refused:
        await work
    assert refused.value.charged is False
    return refused.value.message


async def test_a_body_is_stored_in_any_order_and_read_by_its_attempt(contents: Contents) -> None:
    session = await contents.session()
    first = await contents.status(session)
    assert (first.complete, first.missing) == (False, [0, 1])
    assert not await contents.put(session, piece=1, data=piece_data(BODY, 1))
    assert (await contents.status(session)).missing == [0]
    assert not await contents.put(session, piece=0, data=piece_data(BODY, 0))
    assert await contents.put(session)
    assert await contents.put(session)  # the same again
    attempt = await contents.admit(session)
    assert b"".join([await contents.get(session, attempt, number) for number in (0, 1)]) == BODY
    await refusal(contents.get(session, attempt, 2), BadRequest)


async def test_only_the_attempt_that_runs_the_call_reads_it(contents: Contents) -> None:
    session, other = await contents.session(), await contents.session()
    await contents.store_all(session)
    await refusal(contents.get(session, "none", 0), BadRequest)
    attempt = await contents.admit(session)
    foreign = await contents.admit(other)
    await refusal(contents.get(session, attempt, 0, incarnation="w2"), BadRequest)
    await refusal(contents.get(session, foreign, 0), BadRequest)
    # The other session's call has the same body and the same request id; its own body was never stored.
    await refusal(contents.get(other, foreign, 0), BadRequest)
    assert await contents.get(session, attempt, 0)


async def test_an_incomplete_content_is_not_read(contents: Contents) -> None:
    session = await contents.session()
    await contents.put(session, piece=0, data=piece_data(BODY, 0))
    await refusal(contents.get(session, await contents.admit(session), 0), BadRequest)


async def test_pieces_with_another_hash_are_refused_and_can_be_put_again(contents: Contents) -> None:
    session = await contents.session()
    wrong = bytes(len(BODY))
    for number in (0, 1):
        await contents.put(session, piece=number, data=piece_data(wrong, number))
    assert "sha256" in await refusal(contents.put(session), BadRequest)
    assert (await contents.status(session)).missing == [0, 1]
    await contents.store_all(session)


WRONG_FIELDS: list[dict[str, object]] = [
    {"piece": 0, "data": ""},
    {"piece": 1, "data": encode_piece(BODY[:CONTENT_PIECE_BYTES])},
    {"piece": 2, "data": encode_piece(b"x")},
    {"piece": 0, "data": "not base64!"},
    {"piece": -1, "data": ""},
    {"piece": 512, "data": ""},
    {"sha256": "../../etc/passwd"},
    {"sha256": SHA256.upper()},
    {"size": 0},
    {"size": MAX_CONTENT_BYTES + 1},
    {"requestId": ""},
]


async def test_a_wrong_piece_is_a_bad_request(contents: Contents) -> None:
    session = await contents.session()
    for fields in WRONG_FIELDS:
        await refusal(contents.status(session, **fields), BadRequest)  # type: ignore[arg-type]


async def test_another_size_under_the_same_hash_is_a_bad_request(contents: Contents) -> None:
    session = await contents.session()
    await contents.status(session)
    assert "size" in await refusal(contents.status(session, size=len(BODY) + 1), BadRequest)


async def test_the_limits_of_session_and_store_hold(contents: Contents) -> None:
    usual = await contents.metadata.ledger_driver.open_session()
    too_large = bytes(1024 * 1024 + 1)
    assert str(1024 * 1024) in await refusal(contents.put(usual, body=too_large), PayloadTooLarge)
    session = await contents.session()
    await contents.put(session, "r1")
    await contents.put(session, "r2")
    full = await refusal(contents.put(session, "r3", bytes(3 * CONTENT_PIECE_BYTES)), Overloaded)
    assert str(MAX_STORED) in full
    await contents.store_all(session, "r1")  # what was announced has its place


async def test_without_a_call_left_nothing_is_stored_but_for_calls_that_are_reserved(contents: Contents) -> None:
    session = await contents.session(max_calls=1)
    await contents.metadata.ledger_driver.reserve(session, "r1")
    await refusal(contents.put(session, "r2"), BudgetExhausted)
    await contents.store_all(session, "r1")


async def test_a_token_that_is_none_stores_nothing(contents: Contents) -> None:
    session = await contents.session()
    forged = session.model_copy(update={"token": session.token[:-1] + "x"})
    await refusal(contents.put(forged), Unauthorized)
    assert not await contents.rows()


async def test_a_deadline_that_has_passed_stores_nothing(contents: Contents) -> None:
    session = await contents.session()
    await refusal(contents.put(session, deadline=1), Expired)
    assert not await contents.rows()


async def test_the_same_content_is_put_by_several_at_once(contents: Contents) -> None:
    session = await contents.session()
    await asyncio.gather(*(contents.put(session, piece=n, data=piece_data(BODY, n)) for n in (0, 1, 0, 1, 0, 1)))
    assert await asyncio.gather(*(contents.put(session) for _ in range(3))) == [True, True, True]
    assert len(await contents.rows()) == 1


async def test_a_content_is_deleted_when_its_call_was_answered(contents: Contents) -> None:
    session = await contents.session()
    await contents.store_all(session)
    [content_id] = await contents.rows()
    admit = admit_request(session, "r1", body_sha256=SHA256, body_bytes=len(BODY))
    await contents.metadata.ledger_driver.admit(admit)
    await contents.metadata.ledger_driver.settle(session, admit)
    await contents.wait_until_deleted(content_id)
    # Its answer is stored: the same request again needs no body.
    assert await contents.put(session)
    assert not await contents.rows()


@pytest.mark.parametrize("is_complete", [True, False])
async def test_a_content_is_deleted_after_its_deadline(contents: Contents, is_complete: bool) -> None:
    session = await contents.session()
    await contents.put(session, piece=0, data=piece_data(BODY, 0))
    if is_complete:
        await contents.store_all(session)
    [content_id] = await contents.rows()
    ledger = contents.metadata.ledger_driver.ledger
    await ledger.transact(lambda moment: execute("UPDATE content SET expires_at = ?", moment.now - 61_000))
    await contents.wait_until_deleted(content_id)


async def test_contents_survive_the_service(contents: Contents) -> None:
    session = await contents.session()
    await contents.store_all(session)
    ledger = contents.metadata.ledger_driver.ledger
    async with run_metadata_service(TIMINGS, ledger=ledger, content_store=contents.store) as successor:
        again = Contents(successor, contents.store)
        attempt = await again.admit(session)
        assert await again.get(session, attempt, 1) == BODY[CONTENT_PIECE_BYTES:]


async def test_what_another_session_stored_is_not_deleted_with_a_call(contents: Contents) -> None:
    session, other = await contents.session(), await contents.session()
    await contents.store_all(session)
    await contents.store_all(other)
    admit = admit_request(session, "r1", body_sha256=SHA256, body_bytes=len(BODY))
    await contents.metadata.ledger_driver.admit(admit)
    await contents.metadata.ledger_driver.settle(session, admit)
    async with asyncio.timeout(30):
        while len(await contents.rows()) > 1:
            await asyncio.sleep(0.05)
    attempt = await contents.admit(other)
    assert await contents.get(other, attempt, 0)


async def test_files_are_of_this_user_alone(tmp_path: Path) -> None:
    ledger = await open_ledger("sqlite://")
    store = open_content_store(ContentSettings(store=str(tmp_path / "deep" / "store"), max_bytes=MAX_STORED), ledger)
    assert store is not None
    await store.write("0" * 32, 0, b"secret")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "deep" / "store").rglob("*")}
    assert modes == {"0" * 32: 0o700, "0": 0o600}
    await ledger.close()


async def test_a_store_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    ledger = await open_ledger("sqlite://")
    (tmp_path / "file").touch()
    for store in (str(tmp_path / "file" / "store"), "postgresql"):
        with pytest.raises(ConfigError, match="QUINTAIN_CONTENT_STORE"):
            open_content_store(ContentSettings(store=store, max_bytes=1), ledger)
    await ledger.close()


async def test_what_no_ledger_knows_any_more_is_deleted(tmp_path: Path) -> None:
    store = FolderContentStore(tmp_path, MAX_STORED)
    old, recent = "a" * 32, "b" * 32
    for content_id in (old, recent):
        await store.write(content_id, 0, b"x")
    (tmp_path / "of somebody else").mkdir()
    for name in (old, "of somebody else"):
        os.utime(tmp_path / name, (0, 0))
    await store.delete_abandoned()
    assert {path.name for path in tmp_path.iterdir()} == {recent, "of somebody else"}


async def test_without_a_store_the_usual_limit_stays() -> None:
    async with run_metadata_service() as metadata:
        with pytest.raises(BadRequest, match=f"maxBodyBytes.*{MAX_BODY_BYTES}.*QUINTAIN_CONTENT_STORE"):
            await metadata.call_operation(
                "open", "the admin token of a test", {"defaultTarget": "a", "maxBodyBytes": MAX_BODY_BYTES + 1}
            )
        session = await metadata.ledger_driver.open_session(max_body_bytes=MAX_CONTENT_BYTES)
        request = {"requestId": "r1", "sha256": SHA256, "size": MAX_BODY_BYTES + 1}
        with pytest.raises(PayloadTooLarge, match="QUINTAIN_CONTENT_STORE"):
            await metadata.call_operation("put_content", session.token, request)
