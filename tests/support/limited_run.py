"""An evaluation with a judge over a model provider that enforces limits, run by the command, and its figures."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import web

from support.command_line import CommandLine, CommandResult
from support.evaluations import rows_of
from support.limited_provider import LimitedProvider, ProviderSettings

#: Both the answer and the judgement of every case.
ANSWER = json.dumps({"score": 1, "reason": "x"})

#: A provider of one key.
SIXTY = ProviderSettings(kind="bucket", per_minute=60, answer=ANSWER)

#: How long a run may take, in seconds.
MAX_SECONDS = 2400

TARGET = '  {name}: {{provider: openai, model: {name}, base_url: "{url}/v1", api_key: "${{{{ KEY }}}}"}}\n'

EVALUATION = """
dataset: {name}.jsonl
targets: [{targets}]
max_calls: {max_calls}
graders: [{{name: judge, builtin: llm-judge, judge_target: {judge}, prompt: judge.md}}]
"""


@contextlib.asynccontextmanager
async def limited_provider(
    settings: ProviderSettings, provider: LimitedProvider | None = None
) -> AsyncIterator[tuple[LimitedProvider, str]]:
    """A provider on a port of its own, and its URL."""
    provider = provider or LimitedProvider(settings)
    runner = web.AppRunner(provider.app(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield provider, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@dataclass(frozen=True)
class LimitFigures:
    """What a run made of its limit. ``error_rows`` counts the rows that are errors by their code."""

    result: CommandResult
    rows: int
    error_rows: Counter[str]
    #: The calls that the ledger charged, and the most calls in flight that were allowed; 0 where no limit was met, as
    #: on a machine that is too busy to ask so fast.
    charged: int
    most_in_flight: int
    answered: Counter[int]
    #: The same of what was answered after the first minute, and what that took of the limit.
    answered_later: Counter[int]
    used_later: int
    #: How long the command took, and from the provider's first answer to its last.
    seconds: float
    provider_seconds: int

    def part_used(self, settings: ProviderSettings) -> float:
        """What was used of the limit after the first minute."""
        return self.used_later / (settings.per_minute / 60 * max(1, self.provider_seconds - 60))

    def __str__(self) -> str:
        return (
            f"{self.rows} rows, errors {dict(self.error_rows)}, {self.charged} charged, {self.seconds:.0f} s,"
            f" answers {dict(self.answered)}, after the first minute {dict(self.answered_later)}"
        )


def write_limited_evaluation(
    folder: Path,
    *,
    cases: int,
    targets: Sequence[str] = ("small",),
    name: str = "eval",
    lengths: Sequence[int] = (8,),
) -> None:
    """Write an evaluation of so many cases, each with an answer and a judgement by the same key.

    ``lengths`` are those of the questions, in turn.
    """
    max_calls = cases * len(targets) * 4
    evaluation = EVALUATION.format(name=name, targets=", ".join(targets), judge=targets[0], max_calls=max_calls)
    rows = ({"id": f"{n}", "question": f"{n} ".ljust(lengths[n % len(lengths)], "x")} for n in range(cases))
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / f"{name}.yaml").write_text(evaluation)
    (folder / "judge.md").write_text("Is {{ output }} right?")


def write_targets(folder: Path, url: str, *targets: str) -> None:
    """Write the configuration of these targets, which share a key."""
    (folder / "quintain.yaml").write_text("targets:\n" + "".join(TARGET.format(name=each, url=url) for each in targets))


@contextlib.asynccontextmanager
async def breaking_down(provider: LimitedProvider, *, after: float, down: float, times: int = 1) -> AsyncIterator[None]:
    """Let the provider answer 500 for so many seconds, after so many of them, once or several times."""

    async def break_down() -> None:
        for _ in range(times):
            await asyncio.sleep(after)
            provider.settings = replace(provider.settings, down=True)
            await asyncio.sleep(down)
            provider.settings = replace(provider.settings, down=False)

    breaking = asyncio.get_running_loop().create_task(break_down())
    try:
        yield
    finally:
        breaking.cancel()


def assert_outlived(figures: LimitFigures, rows: int, failures: int) -> None:
    """Assert that each row has its answer, and that no more was charged than that and what failures hit in flight."""
    assert (figures.rows, figures.error_rows) == (rows, {}), f"{figures}\n{figures.result}"
    assert figures.charged <= 2 * rows + failures * figures.most_in_flight


async def run_limited(
    shell: CommandLine, provider: LimitedProvider, *arguments: str, name: str = "eval"
) -> LimitFigures:
    """Run an evaluation in the shell's folder, and count what its rows are and what its provider answered."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    provider.answered.clear()
    output = shell.folder / "runs" / name
    running = shell.with_environment({"KEY": "k"}).start("run", f"{name}.yaml", *arguments)
    result = await asyncio.to_thread(running.wait, seconds=MAX_SECONDS)
    seconds = loop.time() - began
    last = {(row["caseId"], row["target"]): row for row in rows_of(output)}
    errors = Counter[str]()
    for row in last.values():
        if row["status"] == "error":
            error = row["error"]
            errors[str(error["code"]) if isinstance(error, dict) else "?"] += 1
    answered, later = Counter[int](), Counter[int]()
    times = [second for second, _ in provider.answered] or [0]
    first = min(times)
    for (second, status), count in provider.answered.items():
        answered[status] += count
        if second - first >= 60:
            later[status] += count
    run_json = json.loads((output / "run.json").read_text())
    return LimitFigures(
        result=result,
        rows=len(last),
        error_rows=errors,
        charged=run_json["totals"]["calls"],
        used_later=sum(amount for second, amount in provider.used.items() if second - first >= 60),
        most_in_flight=max((each["limit"] for each in run_json.get("quotas", ())), default=0),
        answered=answered,
        answered_later=later,
        seconds=seconds,
        provider_seconds=max(times) - first,
    )
