"""Callers who ask twice, take back, live by another clock, or are asked to wait: the budget and the answers hold."""

from __future__ import annotations

import asyncio
import time

import pytest

from faults.harness import MOST_AT_ONCE, Aftermath, Said, Siege, ask, nothing, settled
from faults.ledger_books import books_of
from faults.reckoning import Reckoning
from quintain.contracts.invoke import InvokeRequest
from quintain_metadata.lifecycle import State
from support.fleet import ProcessFleet
from support.hearing_bus import evaluator
from support.serve_oddly import AHEAD_VARIABLE

CLIENTS = 8
HOUR_SECONDS = 3600


@pytest.mark.long
async def test_every_call_is_published_three_times_by_one_client(
    fleet: ProcessFleet, questions: list[str], reckoning: Reckoning
) -> None:
    after = await Siege(fleet, questions, copies=3).run("each call asked 3 times", nothing)
    assert set(after.provider.values()) == {1}
    await reckoning.hold(fleet, after)


async def test_eight_clients_ask_the_same_calls(
    fleet: ProcessFleet, questions: list[str], reckoning: Reckoning
) -> None:
    session = await asyncio.to_thread(fleet.open_session, "bot", len(questions))
    said: dict[str, list[Said]] = {question: [] for question in questions}
    heard: dict[str, list[str]] = {question: [] for question in questions}

    async def client(info: list[object]) -> None:
        async with evaluator(fleet.broker_url, session.token) as asking:
            requests = [InvokeRequest(question=question) for question in questions]
            told = await asyncio.gather(*(ask(asking.client, request, deadline_seconds=100) for request in requests))
            for question, each in zip(questions, told, strict=True):
                said[question].append(each)
                heard[question] += asking.heard[question]
            info.append(await settled(asking.client))

    infos: list[object] = []
    await asyncio.gather(*(client(infos) for _ in range(CLIENTS)))
    after = Aftermath(
        fault="each call asked by 8 clients",
        max_calls=len(questions),
        session=session,
        said=said,
        heard=heard,
        again={},
        info=infos[-1],
        books=await books_of(fleet.ledger_url, session.session_id),
        provider=Siege(fleet, questions).provider_count(),
    )
    assert set(after.provider.values()) == {1}
    assert {len(told) for told in said.values()} == {CLIENTS}
    await reckoning.hold(fleet, after)


async def test_clocks_are_an_hour_off(
    bare_fleet: ProcessFleet, questions: list[str], reckoning: Reckoning, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = [{AHEAD_VARIABLE: str(ahead)} for ahead in (HOUR_SECONDS, -HOUR_SECONDS)]
    metadata = bare_fleet.start("serve", "metadata")
    workers = [bare_fleet.start_oddly("worker", extra=extra) for extra in odd]
    for process, service in ((metadata, "metadata"), *((worker, "worker") for worker in workers)):
        await asyncio.to_thread(process.until, f"ready  {service}")
    # This process is the evaluator; its own clock is ahead too.
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + HOUR_SECONDS)
    after = await Siege(bare_fleet, questions, deadline_seconds=60).run("clocks an hour off", nothing)
    assert set(after.provider.values()) == {1}
    await reckoning.hold(bare_fleet, after)


async def test_half_of_the_calls_are_taken_back_under_load(
    fleet: ProcessFleet, questions: list[str], reckoning: Reckoning
) -> None:
    session = await asyncio.to_thread(fleet.open_session, "bot", len(questions))
    back = questions[: len(questions) // 2]
    async with evaluator(fleet.broker_url, session.token) as asking:
        calls = {
            question: asyncio.create_task(ask(asking.client, InvokeRequest(question=question), deadline_seconds=100))
            for question in questions
        }
        await asyncio.wait(calls.values(), return_when=asyncio.FIRST_COMPLETED)
        taken_back = await asking.client.cancel(back)
        said = {question: [await call] for question, call in calls.items()}
        info = await settled(asking.client)
        heard = {question: list(asking.heard[question]) for question in questions}
    after = Aftermath(
        fault="half of the calls cancelled",
        max_calls=len(questions),
        session=session,
        said=said,
        heard=heard,
        again={},
        info=info,
        books=await books_of(fleet.ledger_url, session.session_id),
        provider=Siege(fleet, questions).provider_count(),
    )
    cancelled = [question for question, (told,) in said.items() if told.text == "cancelled"]
    assert set(cancelled) <= set(back)
    # What ran may have been answered before its worker heard of it; all else that was taken back ends as that.
    assert 0 < taken_back - MOST_AT_ONCE <= len(cancelled) <= taken_back <= len(back)
    for question in cancelled:
        book, asked = after.books[question], after.provider[question]
        # What was taken back before its provider was asked is free; what was aborted there may have been billed.
        assert book.charged or asked == 0, (question, book, asked)
        assert book.granted >= 1 or not book.charged, (question, book)
        assert book.state is not State.COMMITTED, (question, book)
    await reckoning.hold(fleet, after, faults=frozenset({"cancelled"}))
