"""The faults, held against the table of ``docs/protocol.md`` row by row, and carried over the wire and back."""

from __future__ import annotations

import json

import pytest

from quintain import errors
from quintain.contracts.invoke import FaultReply
from quintain.errors import FAULTS, Fault

#: Of a charge: no ledger decided it.
UNKNOWN = "unknown"

#: docs/protocol.md: code, status, retryable, charged. None: as the ledger says, or where uncharged.
PROTOCOL: list[tuple[str, int, bool | None, bool | str | None]] = [
    ("bad_request", 400, False, False),
    ("unsupported_parameter", 400, False, False),
    ("unknown_target", 400, False, False),
    ("unauthorized", 401, False, False),
    ("forbidden_target", 403, False, False),
    ("request_conflict", 409, False, False),
    ("reply_expired", 410, False, True),
    ("payload_too_large", 413, False, False),
    ("rejected", 422, False, True),
    ("budget_exhausted", 429, False, False),
    ("overloaded", 503, True, False),
    ("budget_unavailable", 503, True, UNKNOWN),
    ("cancelled", 499, False, None),
    ("expired", 504, False, None),
    ("timeout", 504, False, True),
    ("target_unavailable", 502, False, False),
    ("throttled", 503, True, False),
    ("provider_error", 502, None, None),
    ("reply_too_large", 502, False, True),
    ("worker_lost", 502, False, True),
    ("internal", 500, None, None),
]

AS_THE_LEDGER_SAYS = [code for code, _, _, charged in PROTOCOL if charged is None]


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


@pytest.mark.parametrize("code", list(FAULTS))
def test_a_fault_without_words_says_its_own(code: str) -> None:
    fault = FAULTS[code]()
    assert fault.message == (FAULTS[code].__doc__ or "").strip()
    assert "\n" not in fault.message


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


def test_what_the_wire_says_of_the_charge_wins() -> None:
    said = FaultReply.from_fault(errors.Expired(charged=True)).to_fault()
    assert (said.charged, said.retryable) == (True, False)


@pytest.mark.parametrize("code", AS_THE_LEDGER_SAYS)
def test_where_nobody_says_a_fault_is_uncharged(code: str) -> None:
    assert not FAULTS[code]().charged
