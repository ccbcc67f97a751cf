"""The ledger and proofs: one is checked with what is stored of the token, and calls with a token are noted."""

from __future__ import annotations

import time

import pytest

from quintain.contracts.credentials import digest, make_proof
from quintain.contracts.ledger import Admission, Admit
from quintain.contracts.session import SessionOpened
from quintain.errors import Fault, Unauthorized
from quintain_metadata.ledger.calls import CallOperations
from quintain_metadata.ledger.decisions import AdmitOperation
from support.ledger_driver import Driver

DEADLINE = int(time.time() * 1000) + 3_600_000


def proven_admit(session: SessionOpened, request_id: str, /, *, key: str = "a", **altered: object) -> Admit:
    """An admit with a proof of this call, published with this routing key, and with fields that differ from it."""
    proof = make_proof(
        digest(session.token),
        session_id=session.session_id,
        request_id=request_id,
        target=key,
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


async def admit_together(driver: Driver, *admits: Admit) -> list[str]:
    outcomes = await CallOperations(driver.ledger).run(
        [AdmitOperation(admit, "w1", admit.credential()) for admit in admits]
    )
    return [
        outcome.code if isinstance(outcome, Fault) else "granted" if isinstance(outcome, Admission) else "deferred"
        for outcome in outcomes
    ]


async def test_of_a_batch_each_admit_is_checked_by_itself(driver: Driver) -> None:
    await driver.register()
    session, other = [await driver.open_session() for _ in range(2)]
    codes = await admit_together(
        driver,
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


async def test_a_proof_without_a_routing_key_is_good_for_the_default_target_alone(driver: Driver) -> None:
    await driver.register()
    ours, other = await driver.open_session(), await driver.open_session(default_target="b")
    together = [proven_admit(session, f"r{number}", key="") for number, session in enumerate((ours, other, ours))]
    assert await admit_together(driver, *together) == ["granted", "unauthorized", "granted"]
    assert await admit_together(driver, together[1]) == ["unauthorized"]
    assert (await driver.info(other)).call_count == 0


async def test_a_proof_without_a_routing_key_is_good_where_its_call_was_admitted_before(driver: Driver) -> None:
    await driver.register()
    session = await driver.open_session(default_target="b")
    assert await admit_together(driver, proven_admit(session, "r1")) == ["granted"]
    again = [proven_admit(session, name, key="", attempt_id=f"another of {name}") for name in ("r1", "r2")]
    assert await admit_together(driver, *again) == ["deferred", "unauthorized"]
    assert (await driver.info(session)).call_count == 1


async def test_a_closed_sessions_proof_is_refused(driver: Driver) -> None:
    await driver.register()
    session = await driver.open_session(expires_in_seconds=1)
    driver.clock_ahead_ms += 2_000
    admit = proven_admit(session, "r1")
    with pytest.raises(Unauthorized):
        await driver.ask(admit)
