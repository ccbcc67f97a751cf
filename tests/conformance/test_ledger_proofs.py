"""The ledger and proofs: one is checked with what is stored of the token, and calls with a token are noted."""

from __future__ import annotations

import pytest

from conformance.clocked_ledger_driver import ClockedLedgerDriver
from quintain.contracts.ledger import Admission, Admit
from quintain.contracts.proof import make_proof
from quintain.contracts.session import SessionOpened
from quintain.contracts.token import digest
from quintain.errors import Fault, Unauthorized
from quintain_metadata.rules.call_batches import AdmitOperation
from quintain_metadata.rules.session_repository import sessions_sending_tokens

DEADLINE = 2**52


def proven_admit(session: SessionOpened, request_id: str, /, **altered: object) -> Admit:
    """An admit with a proof of this call, and with fields that differ from what it proves."""
    proof = make_proof(
        digest(session.token),
        session_id=session.session_id,
        request_id=request_id,
        target="a",
        body_sha256="body",
        deadline=DEADLINE,
    )
    fields = {
        "session_id": session.session_id,
        "proof": proof,
        "request_id": request_id,
        "attempt_id": f"attempt of {request_id}",
        "target": "a",
        "body_sha256": "body",
        "deadline": DEADLINE,
        **altered,
    }
    return Admit.model_validate(fields)


async def admit_together(driver: ClockedLedgerDriver, *admits: Admit) -> list[str]:
    outcomes = await driver.ledger.transact_each([AdmitOperation(admit, "w1") for admit in admits])
    return [
        outcome.code if isinstance(outcome, Fault) else "granted" if isinstance(outcome, Admission) else "deferred"
        for outcome in outcomes
    ]


async def senders(driver: ClockedLedgerDriver) -> list[tuple[str, str | None]]:
    return await driver.ledger.transact(lambda moment: sessions_sending_tokens(driver.with_clock(moment).now))


async def test_of_a_batch_each_admit_is_checked_by_itself(ledger_driver: ClockedLedgerDriver) -> None:
    await ledger_driver.register()
    session, other = [await ledger_driver.open_session() for _ in range(2)]
    codes = await admit_together(
        ledger_driver,
        proven_admit(session, "r1"),
        proven_admit(session, "r2", request_id="r3"),
        proven_admit(session, "r4", body_sha256="another"),
        proven_admit(session, "r5", deadline=DEADLINE - 1),
        proven_admit(session, "r6", target="b"),
        proven_admit(session, "r7", session_id=other.session_id),
        proven_admit(session, "r8", session_id="0" * 12),
        proven_admit(other, "r1", attempt_id="another"),
    )
    assert codes == ["granted", *["unauthorized"] * 6, "granted"]


async def test_sessions_whose_calls_carry_a_token_are_noted(ledger_driver: ClockedLedgerDriver) -> None:
    await ledger_driver.register()
    old, new = await ledger_driver.open_session(label="old"), await ledger_driver.open_session(label="new")
    assert await admit_together(ledger_driver, proven_admit(new, "r1")) == ["granted"]
    assert await senders(ledger_driver) == []
    with_token = proven_admit(old, "r1").model_copy(
        update={"token": old.token, "proof": None, "session_id": None, "attempt_id": "old"}
    )
    assert await admit_together(ledger_driver, with_token) == ["granted"]
    assert await senders(ledger_driver) == [(old.session_id, "old")]
    ledger_driver.clock_ahead_ms += 25 * 3_600_000
    assert await senders(ledger_driver) == []


async def test_a_closed_sessions_proof_is_refused(ledger_driver: ClockedLedgerDriver) -> None:
    await ledger_driver.register()
    session = await ledger_driver.open_session(expires_in_seconds=1)
    ledger_driver.clock_ahead_ms += 2_000
    with pytest.raises(Unauthorized):
        await ledger_driver.ledger.transact(
            lambda moment: AdmitOperation(proven_admit(session, "r1"), "w1")(ledger_driver.with_clock(moment))
        )
