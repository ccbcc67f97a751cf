"""A run that is killed with SIGKILL while its answers are compared: the rerun asks the judge only what is missing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

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
        asked.write(hashlib.sha256(request.question.encode()).hexdigest() + "\\n")
    while Path("hold").exists() and len(Path("asked.txt").read_text().splitlines()) >= 10:
        await asyncio.sleep(0.02)
    return json.dumps({"better": "first", "reason": "it is the first"})
"""

TARGETS = ("alpha", "beta", "gamma")
CONFIG = "targets:\n" + "".join(
    f"  {name}: {{provider: python, callable: 'bot:{function}', max_concurrency: 2}}\n"
    for name, function in (dict.fromkeys(TARGETS, "answer") | {"sage": "judge"}).items()
)
CASES = 6


@pytest.mark.timeout(120)
def test_a_killed_run_asks_only_the_comparisons_that_are_missing(broker_url: str) -> None:
    with process_fleet(broker_url, CONFIG, targets=[*TARGETS, "sage"]) as fleet:
        fleet.extra_env |= lease_variable()
        folder: Path = fleet.folder
        (folder / "bot.py").write_text(BOT)
        (folder / "hold").touch()
        arena = {"name": "arena", "builtin": "pairwise", "against": "all", "judge_target": "sage"}
        graders: list[dict[str, object]] = [{"name": "same", "builtin": "exact"}, dict(arena)]
        write_evaluation(folder, cases(CASES), graders, targets=list(TARGETS))
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
        pairs = len(TARGETS) * (len(TARGETS) - 1)
        assert set(questions.values()) == {1}, "no question reached the judge twice"
        assert len(questions) == pairs * CASES
        assert totals_of(folder / "out")["calls"] == (len(TARGETS) + pairs) * CASES
        rows = {(row["caseId"], row["target"]): json.dumps(row["graders"]) for row in rows_of(folder / "out")}
        assert len(rows) == len(TARGETS) * CASES
        assert all('"ownSecond"' in graders for graders in rows.values())
