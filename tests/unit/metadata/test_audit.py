"""The books held against themselves: clean ones are clean, and each kind of broken one is found."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest

from quintain.contracts.ledger import AttemptOutcome
from quintain.errors import ConfigError
from quintain_metadata.ledger import audit
from quintain_metadata.store.opening import open_snapshot
from quintain_metadata.store.sqlite import SqliteLedger
from support.ledger_driver import Driver, admit_request


async def write_ledger(path: Path) -> None:
    """A ledger with a parent, a child and three calls: committed, refunded and running."""
    driver = Driver(SqliteLedger(str(path), asyncio.get_running_loop()))
    await driver.register()
    child = await driver.open_session(parent=await driver.open_session(max_calls=9))
    for name, outcome in (("r1", AttemptOutcome.RESULT), ("r2", AttemptOutcome.REFUND), ("r3", None)):
        admit = admit_request(child, name, attempt_id=name)
        await driver.ask(admit)
        if outcome is not None:
            await driver.end(child, admit, outcome)
    await driver.ledger.close()


async def run_audit(path: Path) -> audit.AuditReport:
    async with open_snapshot(f"sqlite://{path}") as snapshot:
        return await snapshot.read(audit.verify_counters())


@pytest.mark.parametrize(
    ("harm", "rule"),
    [
        ("UPDATE session SET used = used + 1 WHERE parent_id IS NULL", "counter"),
        ("UPDATE call SET state = 'released' WHERE request_id = 'r1'", "counter"),
        ("UPDATE call SET attempt_id = 'r2' WHERE request_id = 'r3'", "held by one of its own attempts"),
        ("UPDATE call SET attempts = 2 WHERE request_id = 'r1'", "attempt count"),
        ("UPDATE call SET state = 'inDoubt' WHERE request_id = 'r1'", "says that it was charged"),
        ("INSERT INTO reply VALUES ('s', 'r', '{}', 5)", "stored reply"),
        ("UPDATE attempt SET state = 'unproven' WHERE id = 'r2'", "proven unbilled"),
    ],
)
async def test_each_kind_of_inconsistency_is_found_and_named(tmp_path: Path, harm: str, rule: str) -> None:
    await write_ledger(tmp_path / "ledger")
    connection = apsw.Connection(str(tmp_path / "ledger"))
    connection.execute(harm)
    connection.close()
    findings = (await run_audit(tmp_path / "ledger")).findings
    assert findings
    assert all(rule in finding.rule for finding in findings)


async def test_a_ledger_is_audited_while_its_service_writes_it(tmp_path: Path) -> None:
    await write_ledger(tmp_path / "ledger")
    driver = Driver(SqliteLedger(str(tmp_path / "ledger"), asyncio.get_running_loop()))
    async with open_snapshot(f"sqlite://{tmp_path / 'ledger'}") as snapshot:
        await driver.open_session()
        assert (await snapshot.read(audit.verify_counters())).sessions == 2  # as it was when the snapshot was taken
    await driver.ledger.close()


async def test_every_call_is_exported_once_and_no_faults_sentence_with_it(tmp_path: Path) -> None:
    await write_ledger(tmp_path / "ledger")
    async with open_snapshot(f"sqlite://{tmp_path / 'ledger'}") as snapshot:
        page = await snapshot.read(audit.export_page(("", "")))
        rest = await snapshot.read(audit.export_page((page[-1].session_id, page[-1].request_id)))
    assert [(call.request_id, call.state) for call in page] == [
        ("r1", "committed"),
        ("r2", "refunded"),
        ("r3", "running"),
    ]
    assert rest == []


async def test_a_ledger_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no ledger"):
        await run_audit(tmp_path / "nowhere")
