"""What is promised of every delivery, whatever it is: one end, one answer, no token in sight, no false charge."""

from __future__ import annotations

import json

from quintain.bus.base import Envelope
from quintain.contracts.invoke import FaultReply
from quintain.errors import FAULTS
from quintain.topology import Exchange
from support.hostile import Delivered
from support.watched_fleet import ADMIN_TOKEN, WatchedFleet

#: A fault is never longer than this, whatever it is about.
MOST_FAULT_BYTES = 4 * 1024


def feed(fleet: WatchedFleet, exchange: Exchange, key: str, delivered: Delivered) -> list[Envelope]:
    """Publish a delivery and wait for its end; its answers. Fails where a promise that needs no answer is broken."""
    fleet.watch.forget()
    fleet.written.lines.clear()
    fleet.kept.clear()
    fleet.run(fleet.publish(exchange, key, delivered.envelope()))
    answers = list(fleet.watch.answers)
    assert fleet.watch.settled, "somebody took it"
    assert fleet.watch.escaped == []
    assert [ends for _, *ends in fleet.watch.settled if ends not in (["ack"], ["dead_letter"])] == []
    assert fleet.lost == []
    _hold_nothing_secret(fleet)
    return answers


def fed_and_answered(
    fleet: WatchedFleet,
    exchange: Exchange,
    key: str,
    delivered: Delivered,
    *,
    correlated: bool = False,
    internal: bool = False,
) -> None:
    """Feed it, and hold its answer and the books to the promise. ``correlated``: whoever gives no correlation id may be
    left without an answer. ``internal``: the answer may be that nobody knows."""
    before = fleet.run(fleet.info())
    answers = feed(fleet, exchange, key, delivered)
    after = fleet.run(fleet.info())
    answerable = bool(delivered.reply_to) and (bool(delivered.correlation_id) or not correlated)
    assert len(answers) == 1 if answerable else len(answers) <= bool(delivered.reply_to)
    for answer in answers:
        fault = _fault_of(answer)
        assert fault is None or internal or fault.code != "internal", fault
        if fault is not None and not fault.charged:
            assert after == before
    if correlated and not answerable:
        assert after == before


def _fault_of(answer: Envelope) -> FaultReply | None:
    assert answer.type in {"result", "fault"}
    assert isinstance(json.loads(answer.body), dict)
    if answer.type == "result":
        return None
    fault = FaultReply.from_wire(answer.body)
    assert fault.code in FAULTS
    assert len(answer.body) <= MOST_FAULT_BYTES
    return fault


def _hold_nothing_secret(fleet: WatchedFleet) -> None:
    written = "\n".join(fleet.written.lines)
    said = b"\n".join(answer.body for answer in fleet.watch.answers).decode()
    kept = " ".join(f"{message.headers} {message.type}" for message in fleet.kept)
    for token in (fleet.session.token, ADMIN_TOKEN):
        secret = token.split("_")[3] if token.startswith("qtn_") else token
        assert secret not in written
        assert secret not in said
        assert secret not in kept
    assert "Traceback" not in written, written
    assert "\x1b" not in written
