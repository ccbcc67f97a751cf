"""A limit in money buys whole rows over RabbitMQ, whatever is killed: an answer whose judge is not paid has no score.

The provider keeps its own bill. The limit ends each run in the middle of its cases, also where another program draws on
the same limit meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from faults.test_money import DOLLAR, SEED, PricedFleet
from quintain.client.client import connect
from quintain.errors import BudgetExhausted
from support.command_line import CommandResult, RunningCommand, command_line
from support.evaluations import Json, rows_of, write_files
from support.priced_provider import PRICE, PricedProvider, serving
from support.process_fleet import ADMIN_TOKEN, process_fleet
from support.quick import lease_variable

log = logging.getLogger(__name__)

#: In US dollars. A row costs about 0.0037, and reserves six times that.
LIMIT, CASES = 0.4, 250

CONFIG = """
targets:
  small:
    provider: openai
    model: m
    base_url: "URL/v1"
    max_tokens: 300
    adaptive: false
    price: PRICE
"""
EVALUATION = """
dataset: cases.jsonl
targets: [small]
max_calls: 5000
graders: [{name: judge, builtin: llm-judge, prompt: judge.md}]
"""
OUTPUT = Path("runs") / "eval"


@asynccontextmanager
async def judged_fleet(
    broker_url: str, ledger_url: str | None = None, services: dict[str, int] | None = None
) -> AsyncIterator[PricedFleet]:
    answer = json.dumps({"score": 1, "reason": "x"})
    provider = PricedProvider(output=1 / 3, answer=answer, is_exact=True, seconds=0.1)
    async with serving(provider) as url:
        config = CONFIG.replace("URL", url).replace("PRICE", json.dumps(PRICE))
        with process_fleet(broker_url, config, targets=["small"]) as fleet:
            fleet.extra_env |= lease_variable() | ({} if ledger_url is None else {"QUINTAIN_LEDGER_URL": ledger_url})
            write_files(fleet.folder, cases=CASES, eval_yaml=EVALUATION, judge_md="Is {{ output }} right?")
            running = {
                name: [await asyncio.to_thread(fleet.start_service, name) for _ in range(count)]
                for name, count in (services or {"metadata": 1, "worker": 1}).items()
            }
            env = {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
            with command_line(fleet.folder, env) as shell:
                yield PricedFleet(fleet, shell, provider, running)


def start(priced: PricedFleet, limit: float = LIMIT, output: Path = OUTPUT, *more: str) -> RunningCommand:
    words = ("run", "eval.yaml", "--output", str(output), "--concurrency", "64")
    return priced.shell.start(*words, "--max-cost-usd", str(limit), *more)


async def ended(running: RunningCommand, code: int | None = None) -> CommandResult:
    result = await asyncio.to_thread(running.wait, seconds=150)
    assert code in {None, result.code}, result
    return result


def final_rows(priced: PricedFleet, output: Path = OUTPUT) -> list[Json]:
    return list({row["caseId"]: row for row in rows_of(priced.fleet.folder / output)}.values())


def check_whole(rows: list[Json]) -> None:
    for row in rows:
        is_graded = row["status"] == "graded"
        assert (row["score"] is not None) is is_graded, row
        assert not is_graded or row["graders"], row


@pytest.mark.timeout(240)
async def test_near_the_limit_each_row_that_was_asked_is_graded(broker_url: str) -> None:
    async with judged_fleet(broker_url) as priced:
        # The workers alone know the targets.
        (priced.fleet.folder / "quintain.yaml").unlink()
        checked = await asyncio.to_thread(
            priced.shell.run, "check", "eval.yaml", "--max-cost-usd", str(LIMIT), "--json"
        )
        told: Json = checked.json["costLimit"]  # type: ignore[assignment]
        assert 10 < told["rowsAtOnce"] < 25  # type: ignore[operator]
        stopped = await ended(start(priced), 4)
        rows = final_rows(priced)
        assert {row["status"] for row in rows} == {"graded"}
        assert priced.provider.requests == 2 * len(rows)
        assert priced.provider.bill >= 0.92 * LIMIT * DOLLAR
        words = shlex.split(stopped.stdout.rpartition("To finish: quintain ")[2])
        await ended(priced.shell.start(*words), 0)
        assert ({row["status"] for row in final_rows(priced)}, priced.provider.requests) == ({"graded"}, 2 * CASES)


async def check_round(priced: PricedFleet, victim: str, output: Path) -> None:
    """Kill a victim at a random moment of a run that the limit ends, and finish the run with a higher limit."""
    random_source, provider = random.Random(f"{SEED} {output}"), priced.provider
    provider.bill = provider.requests = 0
    running, kill_at = start(priced, output=output), random_source.uniform(0.1, 0.95) * LIMIT * DOLLAR
    await asyncio.to_thread(running.wait_for, lambda _: provider.bill >= kill_at, seconds=100)
    if victim == "run":
        running.kill()
        running = start(priced, output=output)
    else:
        await asyncio.to_thread(priced.kill, victim, random_source)
    result = await ended(running)
    assert result.code in {1, 4}
    check_whole(final_rows(priced, output))
    assert provider.bill <= LIMIT * DOLLAR
    for _ in range(3):
        result = await ended(start(priced, 5, output, "--in-doubt", "retry"))
        if result.code == 0:
            break
    rows = final_rows(priced, output)
    check_whole(rows)
    assert (len(rows), {row["status"] for row in rows}) == (CASES, {"graded"})
    assert provider.requests <= 2 * CASES + 2 * 64
    log.info("%s: killed at %.2f of the limit, %d requests", output, kill_at / LIMIT / DOLLAR, provider.requests)


VICTIMS = ("worker", "metadata", "run")
ROUNDS = 5


@pytest.mark.timeout(240)
async def test_no_row_is_half_graded_when_a_worker_is_killed(broker_url: str) -> None:
    async with judged_fleet(broker_url) as priced:
        await check_round(priced, "worker", OUTPUT)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
async def test_no_row_is_half_graded_in_every_round(
    broker_url: str, request: pytest.FixtureRequest, store: str, victim: str
) -> None:
    url = None if store == "sqlite" else request.getfixturevalue("fresh_postgres_url")
    services = {"metadata": 1, "worker": 1} if url is None else {"metadata": 3, "worker": 2}
    async with judged_fleet(broker_url, url, services) as priced:
        for number in range(ROUNDS):
            await check_round(priced, victim, Path("runs") / f"{victim}-{number}")


@pytest.mark.timeout(240)
async def test_beside_another_program_on_the_same_limit_rows_stay_whole(broker_url: str) -> None:
    async with judged_fleet(broker_url) as priced:
        opened: Json = (
            await asyncio.to_thread(
                priced.shell.run,
                "session",
                "open",
                "--default-target",
                "small",
                "--max-calls",
                "5000",
                "--max-cost-usd",
                "0.4",
                "--json",
            )
        ).json
        token, asked = str(opened["token"]), 0
        with command_line(
            priced.fleet.folder, {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_SESSION_TOKEN": token}
        ) as shell:
            running = asyncio.create_task(ended(shell.start("run", "eval.yaml"), 4))
            async with connect(broker_url, token) as other:
                while not running.done():
                    with contextlib.suppress(BudgetExhausted):
                        await other.invoke("What else?")
                        asked += 1
            stopped = await running
        assert asked
        check_whole(final_rows(priced))
        assert priced.provider.bill <= LIMIT * DOLLAR
        assert f"PATCH /sessions/{opened['sessionId']}" in stopped.stdout
