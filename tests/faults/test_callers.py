"""Callers who ask twice, take back, live by another clock, or are asked to wait: the budget and the answers hold."""

from __future__ import annotations

import asyncio
import time

import pytest

from faults.crashing_service import CLOCK_AHEAD_VARIABLE, start_with_faults
from faults.invariants import InvariantChecker
from faults.ledger_calls import read_calls
from faults.scenario import (
    CallOutcome,
    FaultScenario,
    ScenarioResult,
    no_fault,
    send_until_accepted,
    wait_until_idle,
)
from quintain.contracts.invoke import InvokeRequest
from support.process_fleet import ProcessFleet
from support.recording_bus import recording_client

CLIENTS = 8
HOUR_SECONDS = 3600


@pytest.mark.every_broker
async def test_eight_clients_ask_the_same_calls(
    fleet: ProcessFleet, questions: list[str], invariants: InvariantChecker
) -> None:
    session = await asyncio.to_thread(fleet.open_session, "bot", len(questions))
    said: dict[str, list[CallOutcome]] = {question: [] for question in questions}
    heard: dict[str, list[str]] = {question: [] for question in questions}

    async def client(info: list[object]) -> None:
        async with recording_client(fleet.broker_url, session.token) as asking:
            requests = [InvokeRequest(question=question) for question in questions]
            told = await asyncio.gather(
                *(send_until_accepted(asking.client, request, deadline_seconds=100) for request in requests)
            )
            for question, each in zip(questions, told, strict=True):
                said[question].append(each)
                heard[question] += asking.reply_texts[question]
            info.append(await wait_until_idle(asking.client))

    infos: list[object] = []
    await asyncio.gather(*(client(infos) for _ in range(CLIENTS)))
    after = ScenarioResult(
        fault="each call asked by 8 clients",
        max_calls=len(questions),
        session=session,
        outcomes=said,
        reply_texts=heard,
        repeated_outcomes={},
        info=infos[-1],
        ledger_calls=await read_calls(fleet.ledger_url, session.session_id),
        provider_calls=FaultScenario(fleet, questions).provider_count(),
    )
    assert set(after.provider_calls.values()) == {1}
    assert {len(told) for told in said.values()} == {CLIENTS}
    await invariants.check(fleet, after)


async def test_clocks_are_an_hour_off(
    stopped_fleet: ProcessFleet, questions: list[str], invariants: InvariantChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = [{CLOCK_AHEAD_VARIABLE: str(ahead)} for ahead in (HOUR_SECONDS, -HOUR_SECONDS)]
    metadata = stopped_fleet.start("serve", "metadata")
    workers = [start_with_faults(stopped_fleet, "worker", extra=extra) for extra in odd]
    for process, service in ((metadata, "metadata"), *((worker, "worker") for worker in workers)):
        await asyncio.to_thread(process.wait_for_output, f"ready  {service}")
    # This process is the evaluator; its own clock is ahead too.
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + HOUR_SECONDS)
    after = await FaultScenario(stopped_fleet, questions, deadline_seconds=60).run("clocks an hour off", no_fault)
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(stopped_fleet, after)
