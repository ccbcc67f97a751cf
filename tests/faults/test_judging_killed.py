"""A run that is killed with SIGKILL while answers are compared or a jury votes: the rerun asks only what is missing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.command_line import command_line
from support.evaluations import cases, rows_of, totals_of, write_evaluation
from support.process_fleet import ADMIN_TOKEN, process_fleet
from support.quick import lease_variable

#: The judge writes down what it is asked, and waits at its tenth question while a file is there.
BOT = """
import asyncio, hashlib, json
from pathlib import Path

async def answer(request):
    return f"{request.target}: {request.question}"

async def judge(request):
    with Path("asked.txt").open("a") as asked:
        asked.write(hashlib.sha256(f"{request.target} {request.question}".encode()).hexdigest() + "\\n")
    while Path("hold").exists() and len(Path("asked.txt").read_text().splitlines()) >= 10:
        await asyncio.sleep(0.02)
    verdict = {"pass": True} if request.target in ("ana", "ben", "col") else {"better": "first"}
    return json.dumps(verdict | {"reason": "it is the first"})
"""

TARGETS, JURY = ("alpha", "beta", "gamma"), ("ana", "ben", "col")
CONFIG = "targets:\n" + "".join(
    f"  {name}: {{provider: python, callable: 'bot:{function}', max_concurrency: 2}}\n"
    for name, function in (dict.fromkeys(TARGETS, "answer") | dict.fromkeys(("sage", *JURY), "judge")).items()
)
CASES = 6


class Killed(NamedTuple):
    """What a killed run and the same command again came to: the judges' questions, the calls, and the rows."""

    questions: int
    calls: int
    rows: list[dict[str, Any]]


def killed_and_run_again(broker_url: str, graders: list[dict[str, object]], targets: Sequence[str]) -> Killed:
    """Kill a run at the tenth question of its judges, and give the same command again."""
    with process_fleet(broker_url, CONFIG, targets=[*TARGETS, "sage", *JURY]) as fleet:
        fleet.extra_env |= lease_variable()
        folder: Path = fleet.folder
        (folder / "bot.py").write_text(BOT)
        (folder / "judge.md").write_text("Is the answer right?")
        (folder / "hold").touch()
        write_evaluation(folder, cases(CASES), graders, targets=list(targets))
        for service in ("metadata", "worker"):
            fleet.start_service(service)
        env = {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        asked = folder / "asked.txt"
        with command_line(folder, env) as shell:
            running = shell.start("run", "eval.yaml", "--output", "out")
            running.wait_for(lambda _: asked.exists() and len(asked.read_text().splitlines()) >= 10, seconds=60)
            running.kill()
            (folder / "hold").unlink()
            ended = shell.run("run", "eval.yaml", "--output", "out")
            assert ended.code == 0, ended
        questions = Counter(asked.read_text().splitlines())
        assert set(questions.values()) == {1}, "no question reached a judge twice"
        return Killed(len(questions), totals_of(folder / "out")["calls"], rows_of(folder / "out"))


@pytest.mark.timeout(120)
def test_a_killed_run_asks_only_the_comparisons_that_are_missing(broker_url: str) -> None:
    arena = {"name": "arena", "builtin": "pairwise", "against": "all", "judge_target": "sage"}
    killed = killed_and_run_again(broker_url, [{"name": "same", "builtin": "exact"}, dict(arena)], TARGETS)
    pairs = len(TARGETS) * (len(TARGETS) - 1)
    assert killed.questions == pairs * CASES
    assert killed.calls == (len(TARGETS) + pairs) * CASES
    rows = {(row["caseId"], row["target"]): json.dumps(row["graders"]) for row in killed.rows}
    assert len(rows) == len(TARGETS) * CASES
    assert all('"ownSecond"' in graders for graders in rows.values())


@pytest.mark.timeout(120)
def test_a_killed_run_asks_only_the_votes_of_a_jury_that_are_missing(broker_url: str) -> None:
    jury: dict[str, object] = {
        "name": "jury",
        "builtin": "llm-judge",
        "judge_targets": list(JURY),
        "prompt": "judge.md",
    }
    killed = killed_and_run_again(broker_url, [jury], ["alpha"])
    assert killed.questions == len(JURY) * CASES
    assert killed.calls == (1 + len(JURY)) * CASES
    assert [sorted(row["graders"]["jury"]["votes"]) for row in killed.rows] == [sorted(JURY)] * CASES
