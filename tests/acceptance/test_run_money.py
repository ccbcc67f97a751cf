"""``quintain run`` with a limit in money, over a provider that keeps its own bill."""

from __future__ import annotations

import asyncio
import json
import shlex
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from support.command_line import CommandLine, CommandResult
from support.evaluations import Json, rows_of, write_files
from support.priced_provider import PRICE, PricedProvider, serving

OUTPUT = Path("runs") / "eval"

EVALUATION = """
dataset: cases.jsonl
targets: [small]
max_calls: 5000
graders: [{name: judge, builtin: llm-judge, prompt: judge.md}]
warn_at: 0.5
"""

#: Both the answer and the judgement of every case.
ANSWER = json.dumps({"score": 1, "reason": "x"})

DOLLAR = 10**12


def write_priced_evaluation(folder: Path, url: str, *, cases: int, more: str = "") -> None:
    """Write an evaluation of so many cases, each with an answer and a judgement of the same target."""
    target = f'{{provider: openai, model: m, base_url: "{url}/v1", max_tokens: 300, price: {json.dumps(PRICE)}{more}}}'
    write_files(
        folder,
        cases=cases,
        quintain_yaml=f"targets:\n  small: {target}\n",
        eval_yaml=EVALUATION,
        judge_md="Is {{ output }} right?",
    )


async def run_within(shell: CommandLine, dollars: float | str, *more: str, code: int) -> CommandResult:
    running = shell.start("run", "eval.yaml", "--max-cost-usd", str(dollars), "--concurrency", "64", *more)
    result = await asyncio.to_thread(running.wait, seconds=80)
    assert result.code == code, result
    return result


def amounts(shell: CommandLine) -> dict[str, int]:
    """The money of the run's sessions, in picodollars."""
    names = ("spent", "held", "reserved", "excess")
    sums = ", ".join(f"sum(cost_{name})" for name in names)
    ledger = sqlite3.connect(shell.folder / OUTPUT / "ledger.sqlite3")
    try:
        (row,) = ledger.execute(f"SELECT {sums} FROM session WHERE parent_id IS NULL").fetchall()
    finally:
        ledger.close()
    return dict(zip(names, row, strict=True))


async def finish(shell: CommandLine, stopped: CommandResult) -> None:
    """Give the command with which a run that its limit ended said it can be finished."""
    words = shlex.split(stopped.stdout.rpartition("To finish: quintain ")[2])
    assert words[-2] == "--max-cost-usd"
    result = await asyncio.to_thread(shell.start(*words).wait, seconds=80)
    assert result.code == 0, result


def final_rows(shell: CommandLine) -> dict[object, Json]:
    """The last row of each case."""
    return {row["caseId"]: row for row in rows_of(shell.folder / OUTPUT)}


@pytest.mark.timeout(120)
async def test_a_run_stops_at_its_limit_and_a_higher_one_finishes_the_rest(shell: CommandLine) -> None:
    provider = PricedProvider(failing=0.25, answer=ANSWER)
    async with serving(provider) as url:
        write_priced_evaluation(shell.folder, url, cases=40, more=", adaptive: false")
        stopped = await run_within(shell, 0.1, code=4)
        first, graded = amounts(shell), [row for row in rows_of(shell.folder / OUTPUT) if row["status"] == "graded"]
        assert provider.bill <= first["spent"] + first["held"] <= 0.1 * DOLLAR
        assert (first["reserved"], first["excess"]) == (0, 0)
        assert "--max-cost-usd" in stopped.stdout
        warnings = [line for line in stopped.stderr.splitlines() if line.startswith("warning")]
        assert sum("warn_at: 0.5" in line for line in warnings) == 1
        provider.failing = 0
        await run_within(shell, 5, "--in-doubt", "retry", code=0)
    last = amounts(shell)
    assert provider.bill <= last["spent"] + last["held"] <= 5 * DOLLAR
    assert last["reserved"] == 0
    rows = final_rows(shell)
    assert all(rows[row["caseId"]] == row for row in graded)
    assert (len(rows), {row["status"] for row in rows.values()}) == (40, {"graded"})


@pytest.mark.timeout(120)
async def test_what_a_run_holds_is_told_and_released_by_the_vendors_bill(shell: CommandLine) -> None:
    provider = PricedProvider(failing=0.25, answer=ANSWER, kinds=("500", "no usage"))
    async with serving(provider) as url:
        write_priced_evaluation(shell.folder, url, cases=40)
        stopped = await run_within(shell, 0.1, code=4)
        first = amounts(shell)
        bill = json.loads((shell.folder / OUTPUT / "run.json").read_text())["bill"]
        assert {each["cause"] for each in bill["held"]} == {"HTTP 500", "no usage"}
        assert sum(each["usd"] for each in bill["held"]) == pytest.approx(first["held"] / DOLLAR)
        assert bill["releaseCommand"] in stopped.stdout
        setting, *words = shlex.split(bill["releaseCommand"])
        unknown = (provider.bill - provider.answered_bill) / DOLLAR
        assert words[1:3] == ["ledger", "release"]
        command = [word.replace("AMOUNT", str(unknown)) for word in words[1:]]
        environment = dict([setting.split("=", 1)])
        released = shell.run(*command, "--json", env=environment).json
        assert released["freedUsd"] == pytest.approx(first["held"] / DOLLAR - unknown)
        assert amounts(shell) == {**first, "spent": first["spent"] + round(unknown * DOLLAR), "held": 0}
        assert "clean" in shell.run("ledger", "verify", env=environment).stdout
        shell.run(*command, env=environment, code=1)  # nothing is held any more
        provider.failing, before = 0, len(final_rows(shell))
        await run_within(shell, 0.1, "--in-doubt", "retry", code=4)
    assert len(final_rows(shell)) > before
    assert provider.bill == amounts(shell)["spent"] <= 0.1 * DOLLAR


#: What a row really costs, of a target and of one that costs a quarter of it: `ANSWER` and its judgement.
ROW_USD, CASES = 0.0037, 280


@pytest.mark.timeout(120)
async def test_a_run_without_failures_uses_its_limit_in_whole_rows(shell: CommandLine) -> None:
    provider = PricedProvider(output=1 / 3, answer=ANSWER, is_exact=True, cheaper={"cheap": 4})
    async with serving(provider) as url:
        write_priced_evaluation(shell.folder, url, cases=CASES)
        cheap = {name: price / 4 for name, price in PRICE.items()}
        config = shell.folder / "quintain.yaml"
        config.write_text(
            f'{config.read_text()}  cheap: {{provider: openai, model: cheap, base_url: "{url}/v1", max_tokens: 300,'
            f" price: {json.dumps(cheap)}}}\n"
        )
        evaluation = shell.folder / "eval.yaml"
        evaluation.write_text(evaluation.read_text().replace("[small]", "[small, cheap]"))
        limit = 400 * ROW_USD * 0.625
        stopped = await run_within(shell, limit, code=4)
        spent = amounts(shell)
        assert 0.97 * limit * DOLLAR <= spent["spent"] <= limit * DOLLAR
        assert (spent["held"], spent["reserved"], spent["spent"]) == (0, 0, provider.bill)
        rows = rows_of(shell.folder / OUTPUT)
        assert {row["status"] for row in rows} == {"graded"}
        # Nothing was paid for that is in no row.
        assert provider.requests == 2 * len(rows)
        await finish(shell, stopped)
    assert {row["status"] for row in final_rows(shell).values()} == {"graded"}
    assert (provider.requests, amounts(shell)["spent"]) == (4 * CASES, provider.bill)


@pytest.mark.timeout(120)
async def test_a_limit_below_one_row_asks_nothing_and_can_be_taken_away(shell: CommandLine) -> None:
    provider = PricedProvider(answer=ANSWER)
    async with serving(provider) as url:
        write_priced_evaluation(shell.folder, url, cases=3)
        stopped = await run_within(shell, 0.012, code=4)
        assert (provider.requests, rows_of(shell.folder / OUTPUT)) == (0, [])
        # The next row may cost more than the limit, whatever it will cost.
        assert "may cost $0.02" in stopped.stdout
        await run_within(shell, "none", code=0)
        assert {row["status"] for row in final_rows(shell).values()} == {"graded"}
        assert (provider.requests, amounts(shell)["spent"]) == (6, provider.bill)
        # Verdicts that are given again are of the run's limit too, and a raised one pays for the rest.
        commands = (("rescore", str(OUTPUT), "0.001", 4, 6), ("run", "eval.yaml", "1", 0, 9))
        for name, what, dollars, code, requests in commands:
            command = shell.start(name, what, "--max-cost-usd", dollars)
            assert (await asyncio.to_thread(command.wait, seconds=60)).code == code
            assert provider.requests == requests


def record_of(shell: CommandLine) -> Json:
    return json.loads((shell.folder / OUTPUT / "run.json").read_text())


def usage_rows(page: str) -> dict[tuple[str, str], list[str]]:
    """The rows of the bill of a Markdown report: the counts of each, by what it is divided by and the name."""
    lines = [line.replace("`", "").strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")]
    return {(cells[0], cells[1]): cells[2:] for cells in lines if cells[0] in {"target", "grader", "role"}}


@pytest.mark.timeout(120)
async def test_the_bill_is_the_same_everywhere_and_the_providers_own(shell: CommandLine) -> None:
    """Of one target that is asked and judges: requests, tokens and dollars, as the provider counts them too."""
    provider = PricedProvider(failing=0.3, kinds=("500", "429"), answer=ANSWER)
    async with serving(provider) as url:
        write_priced_evaluation(shell.folder, url, cases=40, more=", adaptive: false")
        running = shell.start("run", "eval.yaml", "--concurrency", "16", "--markdown", "run.md", "--in-doubt", "retry")
        ended = await asyncio.to_thread(running.wait, seconds=80)
    record = record_of(shell)
    bill: Json = record["bill"]
    total, graders, roles = bill["total"], bill["graders"], bill["roles"]
    assert isinstance(graders, dict)
    assert (total["tries"], total["unprovenTries"]) == (provider.requests, provider.failed)
    assert f"provider requests {total['tries']:,} for {total['calls']:,} calls; {provider.failed:,} " in ended.stdout
    tokens, cost = total["tokenUsage"], total["cost"]
    assert (tokens["input"], tokens["output"], tokens.get("cached", 0)) == provider.tokens
    assert round(cost["spentUsd"] * DOLLAR) == provider.answered_bill
    # What a 500 costs nobody is told.
    assert bool(cost["heldUsd"] or cost["unknown"]) == bool(provider.failed)
    assert bill["targets"] == {"small": total}
    assert graders == {"judge": roles["judge"]}
    for name in ("calls", "counted", "tries", "unprovenTries"):
        assert total[name] == roles["asked"][name] + roles["judge"][name]
    session = record["sessionId"]
    with sqlite3.connect(shell.folder / OUTPUT / "ledger.sqlite3") as ledger:
        counted = ledger.execute("SELECT tries, unproven_tries, cost_spent FROM session WHERE id = ?", (session,))
        assert counted.fetchone() == (provider.requests, provider.failed, provider.answered_bill)
    rows = usage_rows((shell.folder / "run.md").read_text())
    shown = [f"{total['calls']:,}", f"{total['tries']:,}", f"{total['unprovenTries']:,}", f"{tokens['input']:,}"]
    assert rows["target", "small"][:4] == shown
    assert rows["grader", "judge"] == rows["role", "judge"]


def test_what_is_no_amount_is_told_before_anything_is_asked(shell: CommandLine) -> None:
    for words, amount in ((("run", "eval.yaml"), "25$"), (("session", "open", "small"), "0"), (("check",), "nan")):
        assert "--max-cost-usd" in shell.run(*words, f"--max-cost-usd={amount}", code=2).stderr


def test_a_check_says_what_a_row_reserves_and_what_lacks_a_price_or_a_limit(shell: CommandLine) -> None:
    write_priced_evaluation(shell.folder, "http://127.0.0.1:1", cases=3)
    evaluation = shell.folder / "eval.yaml"

    def check(*more: str, code: int = 0) -> Any:
        return shell.run("check", "eval.yaml", "--json", *more, code=code).json

    assert check()["costLimit"] is None
    told = check("--max-cost-usd", "1")["costLimit"]
    reserved, row = told["reservationsUsd"]["small"], told["rowsUsd"]["small"]
    assert 0.0045 < reserved < 0.0065
    # The judge reads the question, its prompt and the longest answer, and answers itself.
    assert 0.02 < row < 0.03
    assert told["rowsAtOnce"] == 1 // row
    assert "targets.small.max_tokens" in told["advice"]
    evaluation.write_text(EVALUATION + "max_cost_usd: 0.001\n")
    (problem,) = check(code=2)["problems"]
    assert "more than the limit of $0.001" in problem
    config = shell.folder / "quintain.yaml"
    config.write_text(config.read_text().replace("max_tokens: 300, ", ""))
    assert "set targets.small.max_tokens" in shell.run("check", "eval.yaml", code=2).stdout
    config.write_text("targets: {small: {provider: mock}}\n")
    assert "set targets.small.price" in shell.run("check", "eval.yaml", code=2).stdout


@pytest.mark.timeout(120)
async def test_answers_without_a_limit_make_the_runs_limit_soft(shell: CommandLine) -> None:
    provider = PricedProvider(answer=ANSWER)
    async with serving(provider) as url:
        write_priced_evaluation(shell.folder, url, cases=30)
        config = shell.folder / "quintain.yaml"
        config.write_text(config.read_text().replace("max_tokens: 300", "output_estimate: 20"))
        evaluation = shell.folder / "eval.yaml"
        evaluation.write_text(EVALUATION + "max_cost_usd: 0.05\n")
        told: Json = shell.run("check", "eval.yaml", "--json").json["costLimit"]
        assert told["soft"] == ["small"]
        stopped = await run_within(shell, 0.05, code=4)
    assert "the soft limit in money" in stopped.stdout
    assert json.loads((shell.folder / OUTPUT / "run.json").read_text())["bill"]["isSoft"]
    spent = amounts(shell)
    assert provider.bill == spent["spent"] + spent["excess"]
    assert spent["excess"] > 0
    assert spent["spent"] + spent["held"] <= 0.05 * DOLLAR


@pytest.mark.timeout(120)
async def test_a_target_that_bills_more_than_its_bound_is_stopped_until_its_price_is_mended(shell: CommandLine) -> None:
    provider = PricedProvider(output=3, answer=ANSWER)
    async with serving(provider) as url:
        write_priced_evaluation(shell.folder, url, cases=6)
        stopped = await run_within(shell, 5, code=1)
        first = amounts(shell)
        assert first["excess"] > 0
        assert "The bound of small was wrong by $" in stopped.stderr
        assert "the bound of small was wrong by $" in stopped.stdout
        bill: Json = json.loads((shell.folder / OUTPUT / "run.json").read_text())["bill"]
        assert list(bill["wrongBounds"]) == ["small"]
        assert provider.bill == sum(first.values())
        requests = provider.requests
        await run_within(shell, 5, code=1)
        assert provider.requests == requests
        config = shell.folder / "quintain.yaml"
        config.write_text(config.read_text().replace('"output_per_million": 15.0', '"output_per_million": 45.0'))
        provider.output = 1
        await run_within(shell, 5, code=0)
    assert {row["status"] for row in final_rows(shell).values()} == {"graded"}
