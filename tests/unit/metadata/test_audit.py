"""The books held against themselves: clean ones are clean, and each kind of broken one is found."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest

from quintain.contracts.ledger import Admission, Admit, Heartbeat, Outcome, Settle
from quintain.contracts.metadata import OpenSession
from quintain.contracts.token import SessionToken
from quintain.errors import ConfigError
from quintain_metadata import audit, calls, sessions, upkeep
from quintain_metadata.snapshot import snapshot_of
from quintain_metadata.sqlite import SqliteLedger


async def written(path: Path) -> None:
    """A ledger with a parent, a child and three calls: committed, refunded and running."""
    ledger = SqliteLedger(str(path), asyncio.get_running_loop())
    beat = Heartbeat(worker_id="w", incarnation="w")
    await ledger.do(lambda moment: upkeep.renew(moment.now, beat))
    ask = OpenSession(default_target="a", max_calls=9)
    parent = SessionToken.mint()
    await ledger.do(lambda moment: sessions.open_session(moment.now, ask, parent, None))
    owner = await ledger.do(lambda moment: sessions.prove(moment.now, parent))
    child = SessionToken.mint()
    await ledger.do(lambda moment: sessions.open_session(moment.now, ask, child, owner))
    for name, outcome in (("r1", Outcome.RESULT), ("r2", Outcome.REFUND), ("r3", None)):
        admit = Admit(token=child.text, request_id=name, attempt_id=name, target="a", body_sha256="b")
        grant = await ledger.do(lambda moment, ask=admit: calls.admit(moment, ask, "w"))
        assert isinstance(grant, Admission)
        if outcome is not None:
            settle = Settle(session_id=child.id, request_id=name, attempt_id=name, outcome=outcome)
            await ledger.do(lambda moment, ask=settle: calls.settle(moment, ask))
    await ledger.close()


async def verdict_on(path: Path) -> audit.Audit:
    async with snapshot_of(f"sqlite://{path}") as snapshot:
        return await snapshot.read(audit.verify_counters())


async def test_books_as_the_ledger_writes_them_are_clean(tmp_path: Path) -> None:
    await written(tmp_path / "ledger")
    assert await verdict_on(tmp_path / "ledger") == audit.Audit(sessions=2, calls=3, findings=())


@pytest.mark.parametrize(
    ("harm", "rule"),
    [
        ("UPDATE session SET used = used + 1 WHERE parent_id IS NULL", "counter"),
        ("UPDATE call SET state = 'released' WHERE request_id = 'r1'", "counter"),
        ("UPDATE call SET attempt_id = 'nobody' WHERE request_id = 'r3'", "held by one of its own attempts"),
        ("UPDATE call SET attempts = 2 WHERE request_id = 'r1'", "as many attempts"),
        ("UPDATE call SET state = 'inDoubt' WHERE request_id = 'r3'", "says that it was charged"),
        ("UPDATE attempt SET state = 'unproven' WHERE id = 'r2'", "proven unbilled"),
    ],
)
async def test_broken_books_are_found_and_named(tmp_path: Path, harm: str, rule: str) -> None:
    await written(tmp_path / "ledger")
    connection = apsw.Connection(str(tmp_path / "ledger"))
    connection.execute(harm)
    connection.close()
    findings = (await verdict_on(tmp_path / "ledger")).findings
    assert findings
    assert all(rule in finding.rule for finding in findings)


async def test_the_books_are_read_beside_the_service_that_writes_them(tmp_path: Path) -> None:
    await written(tmp_path / "ledger")
    ledger = SqliteLedger(str(tmp_path / "ledger"), asyncio.get_running_loop())
    async with snapshot_of(f"sqlite://{tmp_path / 'ledger'}") as snapshot:
        ask = OpenSession(default_target="a")
        token = SessionToken.mint()
        await ledger.do(lambda moment: sessions.open_session(moment.now, ask, token, None))
        assert (await snapshot.read(audit.verify_counters())).sessions == 2  # as it was when the snapshot was taken
    await ledger.close()


async def test_every_call_is_exported_once_and_no_faults_sentence_with_it(tmp_path: Path) -> None:
    await written(tmp_path / "ledger")
    async with snapshot_of(f"sqlite://{tmp_path / 'ledger'}") as snapshot:
        page = await snapshot.read(audit.export_calls(("", "")))
        rest = await snapshot.read(audit.export_calls((page[-1].session_id, page[-1].request_id)))
    assert [(call.request_id, call.state) for call in page] == [
        ("r1", "committed"),
        ("r2", "refunded"),
        ("r3", "running"),
    ]
    assert rest == []


async def test_a_ledger_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no ledger"):
        await verdict_on(tmp_path / "nowhere")
