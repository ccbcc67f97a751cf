"""Random names, taken from blocks, and messages made unchecked from values that were read before."""

from __future__ import annotations

from quintain.contracts.ledger import Admit
from quintain.runtime.concurrency import BLOCK_BYTES, NAME_BYTES, RandomIds


def test_no_name_comes_twice_also_from_block_to_block() -> None:
    ids = RandomIds()
    names = [ids.next() for _ in range(3 * BLOCK_BYTES // NAME_BYTES)]
    assert len(set(names)) == len(names)
    assert {len(name) for name in names} == {2 * NAME_BYTES}


def test_a_trusted_message_is_the_one_that_pydantic_makes() -> None:
    fields = {
        "token": "qtn_x",
        "session_id": None,
        "proof": None,
        "request_id": "r",
        "attempt_id": "a",
        "target": "bot",
        "body_sha256": "b",
        "body_bytes": None,
        "deadline": 5,
        "wait_until": None,
        "problem": None,
        "traceparent": None,
        "alone": None,
        "copy_of": None,
        "max_cost": None,
        "is_estimate": None,
        "cost_problem": None,
        "grader": None,
    }
    assert fields.keys() == Admit.model_fields.keys()
    trusted, made = Admit.unchecked(**fields), Admit.model_construct(**fields)  # type: ignore[arg-type]
    assert trusted == made
    assert trusted.to_wire() == made.to_wire()
    assert trusted.model_copy(update={"target": "other"}).target == "other"
