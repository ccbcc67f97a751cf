"""What is promised of every delivery, whatever it is: one end, one answer, no token in sight, no false charge."""

from __future__ import annotations

import asyncio
import json
import time

from quintain.bus.base import Envelope
from quintain.contracts.invoke import FaultReply
from quintain.errors import FAULTS
from quintain.topology import Exchange
from support.hostile_messages import HostileMessage
from support.observed_fleet import ADMIN_TOKEN, ObservedFleet

#: A fault is never longer than this, whatever it is about.
MAX_FAULT_BYTES = 4 * 1024

#: How long an answer may come after the acknowledgement, in seconds.
MAX_ANSWER_SECONDS = 10.0


def deliver(fleet: ObservedFleet, exchange: Exchange, key: str, message: HostileMessage) -> list[Envelope]:
    """Publish a delivery and wait for its end; its answers. Fails where a promise that needs no answer is broken."""
    fleet.delivery_log.clear()
    fleet.log_capture.lines.clear()
    fleet.poison_messages.clear()
    fleet.run(fleet.publish(exchange, key, message.envelope()))
    answers = list(fleet.delivery_log.answers)
    assert fleet.delivery_log.settled, "somebody took it"
    assert fleet.delivery_log.unhandled_errors == []
    assert [ends for _, *ends in fleet.delivery_log.settled if ends not in (["ack"], ["dead_letter"])] == []
    assert fleet.loop_errors == []
    _check_no_secrets(fleet)
    return answers


def deliver_and_check(
    fleet: ObservedFleet,
    exchange: Exchange,
    key: str,
    message: HostileMessage,
    *,
    needs_correlation_id: bool = False,
    allow_internal: bool = False,
) -> None:
    """Feed it, and hold its answer and the books to the promise. ``needs_correlation_id``: whoever gives no
    correlation id may be left without an answer. ``allow_internal``: the answer may be that nobody knows."""
    before = fleet.run(fleet.info())
    answers = deliver(fleet, exchange, key, message)
    answerable = bool(message.reply_to) and (bool(message.correlation_id) or not needs_correlation_id)
    if answerable and not answers:
        answers = _answers_after_the_acknowledgement(fleet)
    after = fleet.run(fleet.info())
    assert len(answers) == 1 if answerable else len(answers) <= bool(message.reply_to), (message, answers)
    for answer in answers:
        fault = _fault_of(answer)
        assert fault is None or allow_internal or fault.code != "internal", fault
        if fault is not None and not fault.charged:
            assert after == before
    if needs_correlation_id and not answerable:
        assert after == before


def _answers_after_the_acknowledgement(fleet: ObservedFleet) -> list[Envelope]:
    """A heartbeat is acknowledged when it is in a batch, and answered when the batch is in the ledger."""
    deadline = time.monotonic() + MAX_ANSWER_SECONDS
    while not fleet.delivery_log.answers and time.monotonic() < deadline:
        fleet.run(asyncio.sleep(0.01))
    return list(fleet.delivery_log.answers)


def _fault_of(answer: Envelope) -> FaultReply | None:
    assert answer.type in {"result", "fault"}
    assert isinstance(json.loads(answer.body), dict)
    if answer.type == "result":
        return None
    fault = FaultReply.from_wire(answer.body)
    assert fault.code in FAULTS
    assert len(answer.body) <= MAX_FAULT_BYTES
    return fault


def _check_no_secrets(fleet: ObservedFleet) -> None:
    log_text = "\n".join(fleet.log_capture.lines)
    answer_text = b"\n".join(answer.body for answer in fleet.delivery_log.answers).decode()
    poison_text = " ".join(f"{message.headers} {message.type}" for message in fleet.poison_messages)
    for token in (fleet.session.token, ADMIN_TOKEN):
        secret = token.split("_")[3] if token.startswith("qtn_") else token
        assert secret not in log_text
        assert secret not in answer_text
        assert secret not in poison_text
    assert "Traceback" not in log_text, log_text
    assert "\x1b" not in log_text
