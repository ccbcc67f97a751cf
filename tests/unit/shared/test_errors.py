"""The faults, held against the table of ``docs/protocol/README.md`` row by row, and carried over the wire and back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from quintain import errors
from quintain.contracts.invoke import FaultReply
from quintain.errors import FAULTS, Fault

#: Of a charge: no ledger decided it.
UNKNOWN = "unknown"

PAGE = Path(__file__).parents[3] / "docs" / "protocol" / "README.md"

#: What the words of the table's columns say of a fault that says no more. None: as the ledger says, or where uncharged.
RETRYABLE = {"no": False, "yes": True, "if uncharged": None}
CHARGED = {
    "no": False,
    "yes": True,
    "unknown": UNKNOWN,
    "unknown; no if the session is paused or a host had no slot": False,
    "as the ledger says": None,
    "as the ledger says, else unknown": None,
}

#: The rows of the page: code, status, retryable, charged.
PROTOCOL: list[tuple[str, int, bool | None, bool | str | None]] = [
    (code, int(status), RETRYABLE[retryable], CHARGED[charged])
    for code, status, retryable, charged in re.findall(
        r"^\| `(\w+)` \| (\d{3}) \| ([^|]+) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE
    )
]


def test_the_protocols_codes_are_all_there_are() -> None:
    assert set(FAULTS) == {row[0] for row in PROTOCOL}
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Fault)}
    assert kinds - {Fault} == set(FAULTS.values())


@pytest.mark.parametrize(("code", "status", "retryable", "charged"), PROTOCOL)
@pytest.mark.parametrize("said", [None, False, True])
def test_a_fault_is_its_row_whatever_is_said_of_it(
    code: str, status: int, retryable: bool | None, charged: bool | str | None, said: bool | None
) -> None:
    fault = FAULTS[code](charged=said)
    assert (fault.code, fault.status) == (code, status)
    assert fault.charged is (None if charged == UNKNOWN else bool(said) if charged is None else charged)
    assert fault.retryable is (not fault.charged if retryable is None else retryable)
    assert not (fault.charged and fault.retryable)


@pytest.mark.parametrize("code", list(FAULTS))
@pytest.mark.parametrize("charged", [False, True])
def test_a_fault_travels_and_is_raised_as_itself(code: str, charged: bool) -> None:
    sent = FAULTS[code]("what, where, why", charged=charged, retry_after_ms=70, available_targets=["a", "b"])
    got = FaultReply.from_wire(FaultReply.from_fault(sent).to_wire()).to_fault()
    assert type(got) is FAULTS[code]
    assert vars(got) == vars(sent)
    assert str(got) == "what, where, why"


def test_a_fault_on_the_wire_has_the_protocols_keys_and_no_absent_ones() -> None:
    body = json.loads(FaultReply.from_fault(errors.Overloaded("later", retry_after_ms=5)).to_wire())
    assert body == {
        "error": "later", "code": "overloaded", "status": 503, "retryable": True, "charged": False, "retryAfterMs": 5,
    }  # fmt: skip


@pytest.mark.parametrize("code", list(FAULTS))
def test_an_unknown_charge_is_a_charge_to_who_reads_only_charged(code: str) -> None:
    sent = FAULTS[code](charge_unknown=True)
    assert sent.charged is None
    body = json.loads(FaultReply.from_fault(sent).to_wire())
    assert (body["charged"], body["chargeUnknown"]) == (True, True)
    got = FaultReply.model_validate(body).to_fault()
    assert (type(got), got.charged, got.retryable) == (FAULTS[code], None, sent.retryable)


def test_what_is_unknown_is_retryable_only_where_every_such_fault_is() -> None:
    retryable = {code for code, fault in FAULTS.items() if fault(charge_unknown=True).retryable}
    assert retryable == {code for code, _, always, _ in PROTOCOL if always}


def test_a_code_of_a_later_version_is_an_internal_fault_that_keeps_what_it_says() -> None:
    wire = b'{"error": "new", "code": "brand_new", "status": 599, "retryable": false, "charged": true, "extra": 1}'
    fault = FaultReply.from_wire(wire).to_fault()
    assert type(fault) is errors.InternalFault
    assert (fault.message, fault.charged, fault.retryable) == ("new", True, False)
