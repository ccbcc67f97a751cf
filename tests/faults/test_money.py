"""The limit in money holds whatever is killed, and rows stay whole: the provider keeps its own bill."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faults.load import is_long
from quintain.settings import environment
from support.command_line import CommandLine, CommandResult, RunningCommand, command_line
from support.evaluations import Json, rows_of, write_files
from support.priced_provider import PRICE, TIERED_PRICE, PricedProvider, serving
from support.process_fleet import ADMIN_TOKEN, Process, ProcessFleet, process_fleet
from support.quick import lease_variable

log = logging.getLogger(__name__)

SEED = int(environment().get("TEST_SEED", "20"))

#: How many tries are in flight, and how long each of them takes at its provider, in seconds.
IN_FLIGHT, SECONDS = (256, 2.0) if is_long() else (64, 0.5)

#: In US dollars: more than what the tries in flight reserve (0.8 cents each), and less than the rows of a round cost.
LIMIT, CASES = 0.0088 * IN_FLIGHT, 5 * IN_FLIGHT
DOLLAR = 10**12

#: How long what was reserved for killed tries may stay so, in seconds.
RELEASED_SECONDS = 60

#: Without a quota, which would learn a rate from refusals that come at random.
CONFIG = """
targets:
  small:
    provider: openai
    model: m
    base_url: "URL/v1"
    max_tokens: 300
    max_concurrency: 256
    adaptive: false
    price: PRICE
"""
EVALUATION = "dataset: cases.jsonl\ntargets: [small]\ngraders: [{name: same, builtin: exact}]\n"


@dataclass
class PricedFleet:
    """A fleet on a provider that keeps its bill, and a shell before it."""

    fleet: ProcessFleet
    shell: CommandLine
    provider: PricedProvider
    services: dict[str, list[Process]]

    def start_run(self, output: str) -> RunningCommand:
        words = ("run", "eval.yaml", "--output", output, "--concurrency", str(IN_FLIGHT))
        return self.shell.start(*words, "--max-cost-usd", str(LIMIT), "--max-errors", "100000")

    def kill(self, service: str, random_source: random.Random) -> None:
        """Kill one of a service's processes, and start another one in its place."""
        processes = self.services[service]
        place = random_source.randrange(len(processes))
        processes[place].kill()
        processes[place] = self.fleet.start("serve", service)

    async def cost(self, output: str) -> dict[str, int] | None:
        """The money of a run's session, in picodollars; None before it is open."""
        path = self.fleet.folder / output / "session-token"
        if not path.is_file() or not (token := path.read_text().split()):
            return None
        shown = await asyncio.to_thread(self.shell.run, "session", "show", token[0].split("_")[2], "--json", code=None)
        if shown.code:
            # No metadata service was there.
            return None
        info: Any = shown.json
        assert info["maxCostUsd"] == LIMIT
        return {name: round(info["cost"][f"{name}Usd"] * DOLLAR) for name in ("spent", "held", "reserved", "excess")}


@asynccontextmanager
async def priced_fleet(
    broker_url: str, ledger_url: str | None, provider: PricedProvider, cases: int, **files: str
) -> AsyncIterator[PricedFleet]:
    """A fleet on this provider, and the files of an evaluation; on PostgreSQL with several services of each kind."""
    counts = {"metadata": 1, "worker": 1} if ledger_url is None else {"metadata": 3, "worker": 2}
    async with serving(provider) as url:
        price = TIERED_PRICE if provider.tiered else PRICE
        config = CONFIG.replace("URL", url).replace("PRICE", json.dumps(price))
        with process_fleet(broker_url, config, targets=["small"]) as fleet:
            fleet.extra_env |= lease_variable() | ({} if ledger_url is None else {"QUINTAIN_LEDGER_URL": ledger_url})
            write_files(fleet.folder, cases=cases, **files)
            running = {
                name: [await asyncio.to_thread(fleet.start_service, name) for _ in range(count)]
                for name, count in counts.items()
            }
            env = {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
            with command_line(fleet.folder, env) as shell:
                yield PricedFleet(fleet, shell, provider, running)


def failing_fleet(broker_url: str, ledger_url: str | None) -> AbstractAsyncContextManager[PricedFleet]:
    """A fleet on a provider that fails in each way that costs, and has a price of two tiers."""
    provider = PricedProvider(failing=0.25, seconds=SECONDS, tiered=True)
    return priced_fleet(broker_url, ledger_url, provider, CASES, eval_yaml=EVALUATION)


async def check_round(priced: PricedFleet, victims: Sequence[str], output: str) -> None:
    """Kill these victims at random moments of a run, and look at the money from its begin to its end."""
    random_source = random.Random(f"{SEED} {output}")
    provider, ended = priced.provider, asyncio.Event()
    provider.bill, provider.requests, provider.most_in_flight, provider.long_questions = 0, 0, 0, 0

    async def look() -> dict[str, int] | None:
        # What is billed until now is in what the ledger shows later.
        billed = provider.bill
        if (shown := await priced.cost(output)) is not None:
            assert billed <= shown["spent"] + shown["held"] + shown["reserved"] <= LIMIT * DOLLAR, shown
            assert shown["excess"] == 0
        assert provider.bill <= LIMIT * DOLLAR
        return shown

    async def keep_looking() -> int:
        looks = 0
        while not ended.is_set():
            looks += await look() is not None
            await asyncio.sleep(0.2)
        return looks

    looking = asyncio.create_task(keep_looking())
    running = priced.start_run(output)
    kill_at, reruns, step = 0, 0, IN_FLIGHT // len(victims)
    for victim in victims:
        kill_at += random_source.randrange(step // 4, step)
        await asyncio.to_thread(running.wait_for, lambda _, at=kill_at: provider.requests >= at, seconds=100)  # type: ignore[misc]
        if victim == "run":
            running.kill()
            running = priced.start_run(output)
        else:
            await asyncio.to_thread(priced.kill, victim, random_source)
    for _ in range(4):
        result = await asyncio.to_thread(running.wait, seconds=400)
        if result.code == 4:
            break
        # What failed for want of a service is asked again by the same command.
        assert result.code == 1, result
        running, reruns = priced.start_run(output), reruns + 1
    assert result.code == 4, result
    async with asyncio.timeout(RELEASED_SECONDS):
        while (shown := await look()) is None or shown["reserved"]:
            await asyncio.sleep(0.5)
    ended.set()
    assert await looking
    # Both tiers of the price were billed.
    assert 0 < provider.long_questions < provider.requests
    assert provider.bill <= shown["spent"] + shown["held"] <= LIMIT * DOLLAR
    graded = [row for row in rows_of(priced.fleet.folder / output) if row["status"] == "graded"]
    assert graded
    assert all(row["score"] is not None for row in graded)
    figures = {"bill": provider.bill, **shown, "limit": round(LIMIT * DOLLAR)}
    log.info(
        "%s: %d requests, %d in flight at most, %d rows graded, %d reruns; in dollars %s",
        output,
        provider.requests,
        provider.most_in_flight,
        len(graded),
        reruns,
        {name: amount / DOLLAR for name, amount in figures.items()},
    )


VICTIMS = ("worker", "metadata", "run")

#: The ledger's store, and who is killed in each round: all of them in the short form, and each ten times.
ROUNDS = [
    pytest.param("sqlite", [VICTIMS], id="all"),
    *(
        pytest.param(
            store, 10 * [[victim]], id=f"{store}, {victim}", marks=[pytest.mark.long, pytest.mark.timeout(1800)]
        )
        for store, victim in (("sqlite", "worker"), ("postgresql", "metadata"), ("postgresql", "run"))
    ),
]


@pytest.mark.parametrize(("store", "rounds"), ROUNDS)
async def test_the_bill_stays_within_the_limit_whatever_is_killed(
    broker_url: str, store: str, rounds: list[Sequence[str]], request: pytest.FixtureRequest
) -> None:
    ledger_url = None if store == "sqlite" else request.getfixturevalue("fresh_postgres_url")
    async with failing_fleet(broker_url, ledger_url) as priced:
        for number, victims in enumerate(rounds):
            await check_round(priced, victims, f"round-{number}")
        assert (
            json.loads(await asyncio.to_thread(priced.fleet.quintain, "ledger", "verify", "--json"))["findings"] == []
        )


# Rows stay whole: an answer whose judge is not paid has no score.


#: In US dollars. A row costs about 0.0037, and reserves six times that.
ROWS_LIMIT, ROWS_CASES = 0.4, 250

JUDGED_EVALUATION = """
dataset: cases.jsonl
targets: [small]
max_calls: 5000
graders: [{name: judge, builtin: llm-judge, prompt: judge.md}]
"""


def judged_fleet(broker_url: str) -> AbstractAsyncContextManager[PricedFleet]:
    """A fleet on a provider that answers, and judges each answer."""
    answer = json.dumps({"score": 1, "reason": "x"})
    provider = PricedProvider(output=1 / 3, answer=answer, is_exact=True, seconds=0.1)
    judge = {"eval_yaml": JUDGED_EVALUATION, "judge_md": "Is {{ output }} right?"}
    return priced_fleet(broker_url, None, provider, ROWS_CASES, **judge)


def start(priced: PricedFleet, output: Path, limit: float = ROWS_LIMIT, *more: str) -> RunningCommand:
    words = ("run", "eval.yaml", "--output", str(output), "--concurrency", "64")
    return priced.shell.start(*words, "--max-cost-usd", str(limit), *more)


async def ended(running: RunningCommand) -> CommandResult:
    return await asyncio.to_thread(running.wait, seconds=150)


def final_rows(priced: PricedFleet, output: Path) -> list[Json]:
    return list({row["caseId"]: row for row in rows_of(priced.fleet.folder / output)}.values())


def check_whole(rows: list[Json]) -> None:
    for row in rows:
        is_graded = row["status"] == "graded"
        assert (row["score"] is not None) is is_graded, row
        assert not is_graded or row["graders"], row


async def check_round_of_rows(priced: PricedFleet, victim: str, output: Path) -> None:
    """Kill a victim at a random moment of a run that the limit ends, and finish the run with a higher limit."""
    random_source, provider = random.Random(f"{SEED} {output}"), priced.provider
    provider.bill = provider.requests = 0
    running, kill_at = start(priced, output), random_source.uniform(0.1, 0.95) * ROWS_LIMIT * DOLLAR
    await asyncio.to_thread(running.wait_for, lambda _: provider.bill >= kill_at, seconds=100)
    if victim == "run":
        running.kill()
        running = start(priced, output)
    else:
        await asyncio.to_thread(priced.kill, victim, random_source)
    result = await ended(running)
    assert result.code in {1, 4}
    check_whole(final_rows(priced, output))
    assert provider.bill <= ROWS_LIMIT * DOLLAR
    for _ in range(3):
        result = await ended(start(priced, output, 5, "--in-doubt", "retry"))
        if result.code == 0:
            break
    rows = final_rows(priced, output)
    check_whole(rows)
    assert (len(rows), {row["status"] for row in rows}) == (ROWS_CASES, {"graded"})
    assert provider.requests <= 2 * ROWS_CASES + 2 * 64
    log.info("%s: killed at %.2f of the limit, %d requests", output, kill_at / ROWS_LIMIT / DOLLAR, provider.requests)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("victim", "rounds"),
    [("worker", 1), *(pytest.param(victim, 5, marks=pytest.mark.long) for victim in ("metadata", "run"))],
)
async def test_no_row_is_half_graded_when_a_process_is_killed(broker_url: str, victim: str, rounds: int) -> None:
    async with judged_fleet(broker_url) as priced:
        for number in range(rounds):
            await check_round_of_rows(priced, victim, Path("runs") / f"{victim}-{number}")
