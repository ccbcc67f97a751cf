"""Dead letters: each is answered as the ledger says, and only what nobody can answer is kept, without its secrets."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from quintain.bus.base import Delivery, Envelope
from quintain.bus.memory import MemoryBus
from quintain.contracts.credentials import SessionToken, digest, make_proof
from quintain.contracts.headers import DEADLINE_HEADER, PROOF_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.ledger import Admit, AttemptOutcome
from quintain.contracts.session import SessionOpened
from quintain.dlq import REASON_HEADER
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
    RunningMetadataService,
    encode_body,
    next_delivery,
    result_body,
    run_metadata_service,
)
from support.quick import timings
from support.raw_client import text_of

BODY = {"question": "x"}


@pytest.fixture
async def metadata() -> AsyncIterator[RunningMetadataService]:
    async with run_metadata_service(timings(dead_letter_pause_seconds=0.01)) as alone:
        await alone.ledger_driver.register("a")
        await alone.bus.declare(target_topology("a"))
        yield alone


@pytest.fixture
async def session(metadata: RunningMetadataService) -> SessionOpened:
    return await metadata.ledger_driver.open_session(max_calls=5)


async def dead_letter(
    metadata: RunningMetadataService, token: str, *, reason: str = "expired", **more: int | str
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


async def admit_call(metadata: RunningMetadataService, session: SessionOpened) -> Admit:
    ask = admit_request(session, "r1")
    await metadata.ledger_driver.admit(ask)
    return ask


async def test_a_dead_letter_is_authorized_by_its_proof(
    metadata: RunningMetadataService, session: SessionOpened
) -> None:
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
    metadata: RunningMetadataService, session: SessionOpened
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
    info = await metadata.ledger_driver.info(session)
    assert (info.call_count, info.running, info.reserved, info.refunded) == (0, 0, 0, 0)
    assert replies.empty()


async def test_a_reservation_dies_with_its_request(metadata: RunningMetadataService, session: SessionOpened) -> None:
    await metadata.ledger_driver.reserve(session, "r1")
    with pytest.raises(Expired) as expired:
        await dead_letter(metadata, session.token)
    assert not expired.value.charged
    assert (await metadata.ledger_driver.info(session)).call_count == 0


async def test_a_refunded_call_is_expired_uncharged(metadata: RunningMetadataService, session: SessionOpened) -> None:
    await metadata.ledger_driver.settle(session, await admit_call(metadata, session), AttemptOutcome.REFUND)
    with pytest.raises(Expired) as expired:
        await dead_letter(metadata, session.token)
    assert not expired.value.charged


@pytest.mark.parametrize("known", ["unknown", "reserved", "refunded"])
async def test_a_call_that_was_cancelled_before_it_ran_is_cancelled_uncharged(
    metadata: RunningMetadataService, session: SessionOpened, known: str
) -> None:
    if known == "reserved":
        await metadata.ledger_driver.reserve(session, "r1")
    if known == "refunded":
        await metadata.ledger_driver.settle(session, await admit_call(metadata, session), AttemptOutcome.REFUND)
    await metadata.ledger_driver.cancel(session, "r1")
    with pytest.raises(Cancelled) as cancelled:
        await dead_letter(metadata, session.token)
    assert not cancelled.value.charged
    assert (await metadata.ledger_driver.info(session)).call_count == 0


async def test_a_cancelled_call_whose_worker_is_gone_is_in_doubt_and_says_that_it_was_cancelled(
    metadata: RunningMetadataService, session: SessionOpened
) -> None:
    await admit_call(metadata, session)
    await metadata.ledger_driver.cancel(session, "r1")
    await metadata.ledger_driver.expire_lease("w1")
    metadata.ledger_driver.ledger.lease_expiry.suspended_until = 0
    with pytest.raises(Cancelled) as cancelled:
        await dead_letter(metadata, session.token)
    assert cancelled.value.charged
    assert (await metadata.ledger_driver.info(session)).in_doubt == 1


async def test_a_call_that_was_answered_is_answered_again(
    metadata: RunningMetadataService, session: SessionOpened
) -> None:
    await metadata.ledger_driver.settle(session, await admit_call(metadata, session))
    answer = await dead_letter(metadata, session.token)
    assert (text_of(answer), answer["replayed"]) == ("yes", True)


async def test_a_charged_fault_is_told_again(metadata: RunningMetadataService, session: SessionOpened) -> None:
    await metadata.ledger_driver.settle(session, await admit_call(metadata, session), AttemptOutcome.CHARGED)
    with pytest.raises(ProviderFailed, match="it broke") as failed:
        await dead_letter(metadata, session.token)
    assert failed.value.charged


async def test_a_reply_that_is_not_kept_is_expired_and_charged(metadata: RunningMetadataService) -> None:
    session = await metadata.ledger_driver.open_session(store_replies=False)
    await metadata.ledger_driver.settle(session, await admit_call(metadata, session))
    with pytest.raises(ReplyExpired) as gone:
        await dead_letter(metadata, session.token)
    assert gone.value.charged


async def test_a_copy_that_died_while_the_call_runs_moves_nothing_and_says_that_the_charge_is_open(
    metadata: RunningMetadataService, session: SessionOpened
) -> None:
    ask = await admit_call(metadata, session)
    with pytest.raises(Expired) as expired:
        await dead_letter(metadata, session.token)
    assert expired.value.charged is None
    assert (await metadata.ledger_driver.info(session)).running == 1
    await metadata.ledger_driver.settle(session, ask)
    assert (await metadata.ledger_driver.info(session)).committed == 1


async def test_a_call_whose_worker_is_gone_is_in_doubt_with_its_request(
    metadata: RunningMetadataService, session: SessionOpened
) -> None:
    await admit_call(metadata, session)
    await metadata.ledger_driver.expire_lease("w1")
    metadata.ledger_driver.ledger.lease_expiry.suspended_until = 0
    with pytest.raises(TimedOut) as timed_out:
        await dead_letter(metadata, session.token)
    assert timed_out.value.charged
    info = await metadata.ledger_driver.info(session)
    assert (info.running, info.in_doubt, info.call_count) == (0, 1, 1)


@pytest.mark.parametrize("reason", ["delivery_limit", "rejected"])
async def test_what_died_of_something_else_is_not_told_that_its_deadline_passed(
    metadata: RunningMetadataService, session: SessionOpened, reason: str
) -> None:
    with pytest.raises(InternalFault, match=reason) as internal:
        await dead_letter(metadata, session.token, reason=reason)
    assert (internal.value.charged, internal.value.retryable) == (False, True)


@pytest.mark.parametrize("token", ["", "junk", "forged"])
async def test_a_dead_request_with_a_token_that_opens_nothing_is_unauthorized(
    metadata: RunningMetadataService, token: str
) -> None:
    with pytest.raises(Unauthorized, match="^Unauthorized$"):
        await dead_letter(metadata, SessionToken.mint().text if token == "forged" else token)


async def test_without_the_ledger_a_dead_letter_waits_and_is_answered_when_it_is_back(
    metadata: RunningMetadataService, session: SessionOpened, monkeypatch: pytest.MonkeyPatch
) -> None:
    await metadata.ledger_driver.settle(session, await admit_call(metadata, session))
    ledger = metadata.ledger_driver.ledger
    assert isinstance(ledger, SqliteLedger)
    monkeypatch.setattr(ledger, "_closed", True)
    dying = asyncio.get_running_loop().create_task(dead_letter(metadata, session.token))
    await asyncio.sleep(0.05)
    assert not dying.done()
    monkeypatch.setattr(ledger, "_closed", False)
    assert text_of(await dying) == "yes"


@pytest.mark.parametrize("missing", ["reply_to", "correlation_id"])
async def test_what_nobody_can_answer_is_kept_with_its_reason_and_without_its_secret(
    metadata: RunningMetadataService, session: SessionOpened, missing: str
) -> None:
    poison = await metadata.consume_queue(POISON_QUEUE)
    await metadata.consume_queue(target_queue("a"), settle="dead_letter")
    address = {"reply_to": metadata.rpc_client.reply_key, "correlation_id": "c"} | {missing: None}
    headers = {TOKEN_HEADER: session.token, REQUEST_ID_HEADER: "r1", "x-note": f"my token is {session.token}"}
    await metadata.publish(INVOKE, "a", BODY, headers=headers, **address)
    kept = await next_delivery(poison)
    assert kept.body == b'{"question": "x"}'
    assert kept.headers["x-quintain-reason"] == "rejected: no reply_to or no correlation_id"
    assert kept.headers[TOKEN_HEADER] == f"qtn_ses_{session.session_id}_…"
    assert kept.headers[REQUEST_ID_HEADER] == "r1"
    secret = session.token.split("_")[3]
    assert secret not in str(dict(kept.headers))
    assert kept.routing_key == "a"
    assert (await metadata.ledger_driver.info(session)).call_count == 0


async def test_every_dead_letter_is_acknowledged() -> None:
    async with run_metadata_service() as alone:
        session = await alone.ledger_driver.open_session()
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
    metadata: RunningMetadataService, session: SessionOpened, monkeypatch: pytest.MonkeyPatch, queue: Queue
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
    metadata: RunningMetadataService,
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
