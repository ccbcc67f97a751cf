"""Session tokens and proofs of calls: junk is refused without I/O, no bound field can be altered, no secret shows."""

from __future__ import annotations

import hashlib
import hmac
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.contracts.credentials import (
    CallProof,
    SessionToken,
    digest,
    make_proof,
    mask_tokens,
    parse_proof,
    same_secret,
)
from quintain.contracts.ledger import Admit
from quintain.errors import Unauthorized

# Session tokens: junk is refused with no I/O, and no secret ever shows.


DIGITS = string.digits + string.ascii_letters

#: It looks like a token; the checksum of none of these is right but by a chance of one in four billion.
SHAPED = r"qtn_[a-z]{2,8}_[0-9A-Za-z]{12}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}\s?"

KINDS = st.text(string.ascii_lowercase, min_size=2, max_size=8)


def secret_of(token: SessionToken) -> str:
    return token.text.split("_")[3]


@settings(deadline=None)
@given(KINDS)
def test_what_is_minted_is_parsed_back(kind: str) -> None:
    minted = SessionToken.mint(kind)
    parsed = SessionToken.parse(minted.text)
    assert (parsed.kind, parsed.id, parsed.text, parsed.sha256) == (kind, minted.id, minted.text, minted.sha256)


def test_a_token_has_the_protocols_shape() -> None:
    name, kind, token_id, secret, checksum = SessionToken.mint().text.split("_")
    assert (name, kind) == ("qtn", "ses")
    assert (len(token_id), len(secret), len(checksum)) == (12, 43, 6)
    assert set(token_id + secret + checksum) <= set(DIGITS)


@settings(deadline=None)
@given(st.data())
def test_any_single_character_changed_is_refused(data: st.DataObject) -> None:
    text = SessionToken.mint().text
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.one_of(st.sampled_from(DIGITS + "_"), st.characters()).filter(lambda c: c != text[at]))
    with pytest.raises(Unauthorized):
        SessionToken.parse(text[:at] + other + text[at + 1 :])


@settings(deadline=None)
@given(st.one_of(st.none(), st.text(), st.from_regex(SHAPED)))
def test_junk_is_refused_with_the_one_sentence(junk: str | None) -> None:
    with pytest.raises(Unauthorized, match="^Unauthorized$"):
        SessionToken.parse(junk)


@pytest.mark.parametrize("around", ["{}\n", " {}", "{} ", "{}x", "x{}", "{}\x00"])
def test_a_token_with_something_around_it_is_refused(around: str) -> None:
    with pytest.raises(Unauthorized):
        SessionToken.parse(around.format(SessionToken.mint().text))


def test_printing_a_token_shows_its_id_and_nothing_of_its_secret() -> None:
    token = SessionToken.mint()
    for shown in (repr(token), str(token), f"{token}", f"{[token]}"):
        assert token.id in shown
        assert secret_of(token) not in shown


@settings(deadline=None)
@given(st.text(), st.text(), st.lists(KINDS, min_size=1, max_size=4))
def test_masking_takes_every_secret_out_of_a_text(before: str, after: str, kinds: list[str]) -> None:
    tokens = [SessionToken.mint(kind) for kind in kinds]
    text = before + " and ".join(token.text for token in tokens) + after
    masked = mask_tokens(text)
    for token in tokens:
        assert secret_of(token) not in masked
        assert f"qtn_{token.kind}_{token.id}_…" in masked


def test_masking_leaves_other_text_alone() -> None:
    assert mask_tokens("qtn_ses_short and amqp://user@host/qtn") == "qtn_ses_short and amqp://user@host/qtn"


def test_the_ledger_keeps_a_digest_that_only_the_whole_token_matches() -> None:
    token = SessionToken.mint()
    assert token.sha256 == hashlib.sha256(token.text.encode()).digest() == digest(token.text)
    assert same_secret(token.text, token.sha256)
    assert not same_secret(token.text[:-1], token.sha256)
    assert not same_secret("", token.sha256)


# Proofs of calls: each field that is bound, altered, is refused by the one sentence of a wrong token.


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
        *({"id": SessionToken.mint().id}, {"request_id": "r2"}, {"target": "b"}, {"body_sha256": "1" * 64}),
        *({"deadline": 1_001}, {"text": "0" * 64}),
    ],
    ids=lambda altered: next(iter(altered)),
)
def test_no_bound_field_can_be_altered(altered: dict[str, object]) -> None:
    assert not proof(**altered).matches(TOKEN.sha256)


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
