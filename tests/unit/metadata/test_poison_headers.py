"""What the metadata service writes on a message that nobody can answer, whatever its sender had written there."""

from __future__ import annotations

import time

import pytest

from quintain.bus.base import Delivery, Envelope
from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import PROOF_HEADER, TOKEN_HEADER
from quintain.dlq import DEAD_LETTERED_AT_HEADER, EXCHANGE_HEADER, POISON_ID_HEADER, REASON_HEADER
from quintain.topology import DEAD, INVOKE, POISON_QUEUE, target_queue, target_topology
from support.metadata_service import next_delivery, run_metadata_service


async def poison_of(**headers: str | int) -> Delivery:
    """A message that a worker gave up, as it is kept."""
    async with run_metadata_service() as alone:
        await alone.bus.declare(target_topology("a"))
        await alone.consume_queue(target_queue("a"), settle="dead_letter")
        poison = await alone.consume_queue(POISON_QUEUE)
        await alone.publish(INVOKE, "a", b"\xff", headers=headers)
        return await next_delivery(poison)


async def test_a_kept_message_says_why_when_and_from_where_and_has_an_id() -> None:
    before = int(time.time() * 1000)
    kept = await poison_of(**{"x-note": "mine"})
    assert kept.headers[REASON_HEADER] == "rejected: no reply_to or no correlation_id"
    assert kept.headers[EXCHANGE_HEADER] == "quintain.invoke"
    when = kept.headers[DEAD_LETTERED_AT_HEADER]
    assert isinstance(when, int)
    assert before <= when <= int(time.time() * 1000)
    assert len(str(kept.headers[POISON_ID_HEADER])) == 16
    assert (kept.headers["x-note"], kept.routing_key, kept.type, kept.body) == ("mine", "a", "invoke", b"\xff")


async def test_a_proof_is_not_kept() -> None:
    token = SessionToken.mint()
    kept = await poison_of(**{TOKEN_HEADER: token.id, PROOF_HEADER: "0" * 64})
    assert kept.headers[TOKEN_HEADER] == token.id
    assert PROOF_HEADER not in kept.headers


async def test_a_sender_cannot_write_how_its_message_is_kept() -> None:
    forged = {
        POISON_ID_HEADER: "mine",
        DEAD_LETTERED_AT_HEADER: 1,
        EXCHANGE_HEADER: "nowhere",
        "x-quintain-poison-other": 1,
        REASON_HEADER: "-",
    }
    kept = await poison_of(**forged)
    assert {name for name, value in forged.items() if kept.headers.get(name) == value} == set()
    assert "x-quintain-poison-other" not in kept.headers


async def test_a_senders_own_word_for_the_reason_is_not_taken() -> None:
    kept = await poison_of(**{"x-first-death-reason": SessionToken.mint().text})
    assert kept.headers[REASON_HEADER] == "unknown: no reply_to or no correlation_id"
    assert "x-first-death-reason" not in kept.headers


@pytest.mark.parametrize("where", ["type", "header", "token header", "exchange"])
async def test_a_token_is_masked_wherever_it_stands(where: str) -> None:
    token = SessionToken.mint()
    secret = token.text.split("_")[3]
    name = {"token header": TOKEN_HEADER, "exchange": "x-first-death-exchange"}
    async with run_metadata_service() as alone:
        poison = await alone.consume_queue(POISON_QUEUE)
        headers = {} if where == "type" else {name.get(where, "x-note"): token.text}
        kind = token.text if where == "type" else "invoke"
        await alone.bus.publish(DEAD, "a", Envelope(body=b"", type=kind, headers=headers))
        kept = await next_delivery(poison)
    said = f"{kept.type} {kept.routing_key} {dict(kept.headers)}"
    assert token.id in said
    assert secret not in said
