"""Proofs of calls: each field that is bound, altered, is refused by the one sentence of a wrong token."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.contracts.credentials import CallProof, SessionToken, digest, make_proof, parse_proof
from quintain.contracts.ledger import Admit
from quintain.errors import Unauthorized

TOKEN = SessionToken.mint()
CLAIM = {"session_id": TOKEN.id, "request_id": "r1", "target": "a", "body_sha256": "0" * 64, "deadline": 1_000}


def proof(**altered: Any) -> CallProof:
    """The proof of one call, presented for the altered one."""
    mac = make_proof(TOKEN.sha256, **CLAIM)  # type: ignore[arg-type]
    claim = {name: value for name, value in CLAIM.items() if name != "session_id"}
    return CallProof(**{**claim, "id": TOKEN.id, "text": mac, **altered})


def test_a_proof_is_what_the_protocol_says() -> None:
    lines = f"quintain call 1\n{TOKEN.id}\na\n{'0' * 64}\n1000\nr1"
    expected = hmac.new(hashlib.sha256(TOKEN.text.encode()).digest(), lines.encode(), "sha256").hexdigest()
    assert proof().text == expected
    assert proof().matches(digest(TOKEN.text))


@pytest.mark.parametrize(
    "altered",
    [
        {"id": SessionToken.mint().id},
        {"request_id": "r2"},
        {"target": "b"},
        {"body_sha256": "1" * 64},
        {"deadline": 1_001},
        {"text": "0" * 64},
    ],
    ids=lambda altered: next(iter(altered)),
)
def test_no_bound_field_can_be_altered(altered: dict[str, object]) -> None:
    assert not proof(**altered).matches(TOKEN.sha256)


def test_another_sessions_token_made_another_proof() -> None:
    assert not proof().matches(SessionToken.mint().sha256)


def test_the_proof_of_a_message_without_a_routing_key_names_no_target() -> None:
    mac = make_proof(TOKEN.sha256, **{**CLAIM, "target": ""})  # type: ignore[arg-type]
    assert not proof(text=mac).matches(TOKEN.sha256)
    assert proof(text=mac).without_target().matches(TOKEN.sha256)


@settings(deadline=None)
@given(st.text(max_size=200), st.text(max_size=200))
def test_request_ids_of_any_characters_are_told_apart(one: str, other: str) -> None:
    macs = {make_proof(TOKEN.sha256, **{**CLAIM, "request_id": text}) for text in (one[:128], other[:128])}  # type: ignore[arg-type]
    same = {text.replace("\0", "?") or "-" for text in (one[:128], other[:128])}
    assert len(macs) == len(same)


@pytest.mark.parametrize(
    "altered",
    [{"proof": "junk"}, {"proof": "é" * 64}, {"deadline": None}, {"target": "a\nb"}, {"session_id": None}],
    ids=str,
)
def test_a_proof_of_the_wrong_format_needs_no_ledger(altered: dict[str, object]) -> None:
    admit = Admit(attempt_id="t", proof=proof().text, **CLAIM)  # type: ignore[arg-type]
    assert admit.credential() == proof()
    with pytest.raises(Unauthorized):
        admit.model_copy(update=altered).credential()


def test_a_proof_is_not_shown() -> None:
    assert proof().text not in repr(proof())


@pytest.mark.parametrize(
    "session_id", ["x" * 201, "é" * 12, TOKEN.id + "x", 12], ids=["long", "no ASCII", "more", "number"]
)
def test_what_is_no_id_of_a_session_reaches_no_ledger(session_id: object) -> None:
    with pytest.raises(Unauthorized):
        parse_proof(session_id, "0" * 64, request_id="r", target="a", body_sha256="0" * 64, deadline=1)
