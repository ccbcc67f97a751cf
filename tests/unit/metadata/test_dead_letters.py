"""Dead letters: each is answered as the ledger says, and only what nobody can answer is kept, without its secrets."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator

import pytest

from quintain.bus.base import Delivery, Envelope
from quintain.bus.memory import MemoryBus
from quintain.contracts.credentials import SessionToken, digest, make_proof
from quintain.contracts.headers import DEADLINE_HEADER, PROOF_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.ledger import Admit, AttemptOutcome
from quintain.contracts.session import SessionOpened
from quintain.dlq import DEAD_LETTERED_AT_HEADER, EXCHANGE_HEADER, POISON_ID_HEADER, REASON_HEADER
from quintain.errors import (
    Cancelled,
    Expired,
    Fault,
    InternalFault,
    ProviderFailed,
    ReplyExpired,
    TimedOut,
    Unauthorized,
)
from quintain.topology import (
    DEAD,
    DEAD_QUEUE,
    DELIVERY_LIMIT,
    INVOKE,
    METADATA,
    METADATA_QUEUE,
    POISON,
    POISON_QUEUE,
    UNROUTED_QUEUE,
    Binding,
    Exchange,
    Queue,
    Topology,
    target_queue,
    target_topology,
)
from quintain_metadata.dead_letters import poison_handler
from quintain_metadata.store.sqlite import SqliteLedger
from support.ledger_driver import admit_request
from support.metadata_service import (
    Metadata,
    encode_body,
    next_delivery,
    result_body,
    run_metadata_service,
)
from support.quick import timings
from support.raw_client import text_of

BODY = {"question": "x"}


@pytest.fixture
async def metadata() -> AsyncIterator[Metadata]:
    async with run_metadata_service(timings(dead_letter_pause_seconds=0.01)) as alone:
        await alone.driver.register()
        await alone.bus.declare(target_topology("a"))
        yield alone


async def dead_letter(
    metadata: Metadata, token: str, *, reason: str = "expired", **more: int | str
) -> dict[str, object]:
    """A request that died in its queue, as the broker dead-letters it; its answer."""
    headers = {TOKEN_HEADER: token, REQUEST_ID_HEADER: "r1", "x-first-death-reason": reason, **more}
    replies: asyncio.Queue[Delivery] = asyncio.Queue()
    forget = metadata.rpc_client.subscribe("c", replies.put_nowait)
    await metadata.publish(DEAD, "a", BODY, headers=headers, correlation_id="c", reply_to=metadata.rpc_client.reply_key)
    reply = await next_delivery(replies)
    forget()
    assert reply.headers[REQUEST_ID_HEADER] == "r1"
    return result_body(reply)


async def admit_call(metadata: Metadata, session: SessionOpened) -> Admit:
    ask = admit_request(session, "r1")
    await metadata.driver.ask(ask)
    return ask


async def test_a_dead_letter_is_authorized_by_its_proof(metadata: Metadata, session: SessionOpened) -> None:
    proof = make_proof(
        digest(session.token),
        session_id=session.session_id,
        request_id="r1",
        target="a",
        body_sha256=hashlib.sha256(encode_body(BODY)).hexdigest(),
        deadline=5,
    )
    with pytest.raises(Expired):
        await dead_letter(metadata, session.session_id, **{DEADLINE_HEADER: 5, PROOF_HEADER: proof})
    with pytest.raises(Unauthorized):
        await dead_letter(metadata, session.session_id, **{DEADLINE_HEADER: 6, PROOF_HEADER: proof})


async def test_what_expired_in_its_queue_is_expired_uncharged_and_leaves_no_trace(
    metadata: Metadata, session: SessionOpened
) -> None:
    headers = {TOKEN_HEADER: session.token, REQUEST_ID_HEADER: "r1"}
    replies: asyncio.Queue[Delivery] = asyncio.Queue()
    metadata.rpc_client.subscribe("c", replies.put_nowait)
    await metadata.publish(
        INVOKE, "a", BODY, headers=headers, correlation_id="c", reply_to=metadata.rpc_client.reply_key, expiration_ms=20
    )
    with pytest.raises(Expired, match="before a worker was free") as expired:
        result_body(await next_delivery(replies))
    assert not expired.value.charged
    info = await metadata.driver.info(session)
    assert (info.call_count, info.running, info.reserved, info.refunded) == (0, 0, 0, 0)
    assert replies.empty()


async def test_a_call_that_was_answered_is_answered_again(metadata: Metadata, session: SessionOpened) -> None:
    await metadata.driver.end(session, await admit_call(metadata, session))
    answer = await dead_letter(metadata, session.token)
    assert (text_of(answer), answer["replayed"]) == ("yes", True)
    unkept = await metadata.driver.open_session(store_replies=False)
    await metadata.driver.end(unkept, await admit_call(metadata, unkept))
    with pytest.raises(ReplyExpired) as gone:
        await dead_letter(metadata, unkept.token)
    assert gone.value.charged


@pytest.mark.parametrize(
    ("before", "fault", "charged", "counted"),
    [
        ("reserve", Expired, False, {"call_count": 0}),
        ("admit, refund", Expired, False, {"call_count": 0}),
        ("cancel", Cancelled, False, {"call_count": 0}),
        ("reserve, cancel", Cancelled, False, {"call_count": 0}),
        ("admit, refund, cancel", Cancelled, False, {"call_count": 0}),
        ("admit, charged", ProviderFailed, True, {"committed": 1}),
        # A copy that died while the call runs moves nothing, and says that the charge is open.
        ("admit", Expired, None, {"running": 1}),
        ("admit, lose", TimedOut, True, {"running": 0, "in_doubt": 1}),
        ("admit, cancel, lose", Cancelled, True, {"in_doubt": 1}),
    ],
)
async def test_what_died_is_answered_as_the_ledger_knows_its_call(
    metadata: Metadata,
    session: SessionOpened,
    before: str,
    fault: type[Fault],
    charged: bool | None,
    counted: dict[str, int],
) -> None:
    driver, admit = metadata.driver, admit_request(session, "r1")
    driver.ledger.lease_expiry.suspended_until = 0
    for step in before.split(", "):
        match step:
            case "reserve":
                await driver.reserve(session, ["r1"])
            case "admit":
                await driver.ask(admit)
            case "cancel":
                await driver.cancel(session, "r1")
            case "lose":
                await driver.expire_lease("w1")
            case outcome:
                await driver.end(session, admit, AttemptOutcome(outcome))
    with pytest.raises(Fault) as told:
        await dead_letter(metadata, session.token)
    assert (type(told.value), told.value.charged) == (fault, charged)
    info = await driver.info(session)
    assert {name: getattr(info, name) for name in counted} == counted


@pytest.mark.parametrize("reason", ["delivery_limit", "rejected"])
async def test_what_died_of_something_else_is_not_told_that_its_deadline_passed(
    metadata: Metadata, session: SessionOpened, reason: str
) -> None:
    with pytest.raises(InternalFault, match=reason) as internal:
        await dead_letter(metadata, session.token, reason=reason)
    assert (internal.value.charged, internal.value.retryable) == (False, True)


@pytest.mark.parametrize("token", ["", "junk", "forged"])
async def test_a_dead_request_with_a_token_that_opens_nothing_is_unauthorized(metadata: Metadata, token: str) -> None:
    with pytest.raises(Unauthorized, match="^Unauthorized$"):
        await dead_letter(metadata, SessionToken.mint().text if token == "forged" else token)


async def test_without_the_ledger_a_dead_letter_waits_and_is_answered_when_it_is_back(
    metadata: Metadata, session: SessionOpened, monkeypatch: pytest.MonkeyPatch
) -> None:
    await metadata.driver.end(session, await admit_call(metadata, session))
    ledger = metadata.driver.ledger
    assert isinstance(ledger, SqliteLedger)
    monkeypatch.setattr(ledger, "_closed", True)
    dying = asyncio.get_running_loop().create_task(dead_letter(metadata, session.token))
    await asyncio.sleep(0.05)
    assert not dying.done()
    monkeypatch.setattr(ledger, "_closed", False)
    assert text_of(await dying) == "yes"


async def test_every_dead_letter_is_acknowledged() -> None:
    async with run_metadata_service() as alone:
        session = await alone.driver.open_session()
        for token in (session.token, "junk"):
            with pytest.raises(Fault):
                await dead_letter(alone, token)
        await alone.publish(DEAD, "a", BODY)
        poison = await alone.consume_queue(POISON_QUEUE)
        await next_delivery(poison)
        queue = alone.memory.queue("quintain.metadata.dead")
    assert not queue.ready


@pytest.mark.parametrize("queue", [METADATA_QUEUE, UNROUTED_QUEUE, DEAD_QUEUE], ids=lambda queue: queue.name)
async def test_a_message_that_its_handler_breaks_on_ends_in_the_poison_queue(
    metadata: Metadata, session: SessionOpened, monkeypatch: pytest.MonkeyPatch, queue: Queue
) -> None:
    poisoned = await metadata.consume_queue(POISON_QUEUE)
    sent: list[str] = []

    async def refuse(exchange: Exchange, key: str, envelope: Envelope, **more: float) -> None:
        if exchange is not POISON:
            sent.append(key)
            raise ValueError("no message can carry this")
        await MemoryBus.publish(metadata.service_bus, exchange, key, envelope, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(metadata.service_bus, "publish", refuse)
    exchange, key = {METADATA_QUEUE: (METADATA, "info"), UNROUTED_QUEUE: (INVOKE, ""), DEAD_QUEUE: (DEAD, "a")}[queue]
    headers = {TOKEN_HEADER: session.token}
    await metadata.publish(exchange, key, b"{", headers=headers, correlation_id="c", reply_to="r")
    poison = await next_delivery(poisoned)
    assert (poison.body, poison.headers[REASON_HEADER]) == (b"{", "failed: ValueError")
    assert session.token.split("_")[3] not in str(poison.headers)
    assert [key for key in sent if key == "r"] == ["r"] * 3
    assert (await metadata.bus.count([queue]))[queue.name].messages == 0


async def test_a_message_that_may_end_each_process_is_poison_before_it_is_given_up(
    metadata: Metadata,
) -> None:
    poisoned, run = await metadata.consume_queue(POISON_QUEUE), list[Delivery]()

    async def keep(delivery: Delivery) -> None:
        run.append(delivery)
        await delivery.requeue()

    queue = Queue("poison test", "quorum")
    await metadata.bus.declare(Topology((METADATA,), (queue,), (Binding(METADATA, queue, "test"),)))
    await metadata.bus.consume(queue, poison_handler(metadata.bus, keep), prefetch=1)
    await metadata.publish(METADATA, "test", b"{")
    poison = await next_delivery(poisoned)
    assert (poison.body, len(run)) == (b"{", DELIVERY_LIMIT - 1)


# What nobody can answer is kept, with its reason and without its secrets, whatever its sender had written there.


async def poison_of(metadata: Metadata, **headers: str | int) -> Delivery:
    """A message that a worker gave up, as it is kept."""
    await metadata.consume_queue(target_queue("a"), settle="dead_letter")
    poison = await metadata.consume_queue(POISON_QUEUE)
    await metadata.publish(INVOKE, "a", b"\xff", headers=headers, correlation_id="c")
    return await next_delivery(poison)


async def test_a_kept_message_says_why_when_and_from_where_and_has_an_id(metadata: Metadata) -> None:
    before = int(time.time() * 1000)
    kept = await poison_of(metadata, **{"x-note": "mine"})
    assert kept.headers[REASON_HEADER] == "rejected: no reply_to or no correlation_id"
    assert kept.headers[EXCHANGE_HEADER] == "quintain.invoke"
    when = kept.headers[DEAD_LETTERED_AT_HEADER]
    assert isinstance(when, int)
    assert before <= when <= int(time.time() * 1000)
    assert len(str(kept.headers[POISON_ID_HEADER])) == 16
    assert (kept.headers["x-note"], kept.routing_key, kept.type, kept.body) == ("mine", "a", "invoke", b"\xff")


async def test_a_proof_and_what_a_sender_wrote_of_how_its_message_is_kept_are_not_kept(metadata: Metadata) -> None:
    forged = {
        POISON_ID_HEADER: "mine",
        DEAD_LETTERED_AT_HEADER: 1,
        EXCHANGE_HEADER: "nowhere",
        "x-quintain-poison-other": 1,
        REASON_HEADER: "-",
        PROOF_HEADER: "0" * 64,
        "x-first-death-reason": SessionToken.mint().text,
    }
    token_id = SessionToken.mint().id
    kept = await poison_of(metadata, **forged, **{TOKEN_HEADER: token_id})
    assert {name for name, value in forged.items() if kept.headers.get(name) == value} == set()
    assert not {"x-quintain-poison-other", PROOF_HEADER, "x-first-death-reason"} & kept.headers.keys()
    assert kept.headers[REASON_HEADER] == "unknown: no reply_to or no correlation_id"
    assert kept.headers[TOKEN_HEADER] == token_id


@pytest.mark.parametrize("where", ["type", TOKEN_HEADER, "x-note", "x-first-death-exchange"])
async def test_a_token_is_masked_wherever_it_stands(metadata: Metadata, where: str) -> None:
    token = SessionToken.mint()
    poison = await metadata.consume_queue(POISON_QUEUE)
    headers = {} if where == "type" else {where: token.text}
    kind = token.text if where == "type" else "invoke"
    await metadata.bus.publish(DEAD, "a", Envelope(body=b"", type=kind, reply_to="r", headers=headers))
    kept = await next_delivery(poison)
    said = f"{kept.type} {kept.routing_key} {dict(kept.headers)}"
    assert token.id in said
    assert token.text.split("_")[3] not in said
