"""The promise of ``quintain run``: whatever is killed, the same command ends where an undisturbed run ends.

60 cases, 30 in the short form, × 3 targets × 2 graders over RabbitMQ, one of them a program that calls a judge. The
worker, the metadata service and the run itself are each killed once with SIGKILL, at moments drawn from a seed.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults.load import is_long
from quintain.settings import environment
from support.command_line import CommandLine, CommandResult, RunningCommand, command_line
from support.evaluations import Json, rows_of
from support.process_fleet import ADMIN_TOKEN, Process, ProcessFleet, process_fleet
from support.quick import lease_variable

CASES = 60 if is_long() else 30
TARGETS = ("alpha", "beta", "gamma")
TRIALS = CASES * len(TARGETS)

#: How many graders run at once, and how many calls each may make: so many calls are in no row at most, as
#: ``docs/evaluation.md`` says, because an interrupted grader starts again in a new session.
GRADERS_AT_ONCE, CALLS_PER_GRADER = 8, 2

#: Every trial takes two calls, its answer and its judge's; what is left is for what a kill wastes.
MAX_CALLS = 2 * TRIALS + 60

#: The moments of a run; TEST_SEED draws others.
SEED = int(environment().get("TEST_SEED", "20"))

#: The targets answer by the question alone, each wrong where the others are right; the judge says how wrong.
BOT = """
import asyncio, hashlib

def digest(*parts):
    return int(hashlib.sha256(":".join(parts).encode()).hexdigest(), 16)

async def answer(request):
    await asyncio.sleep(0.02)
    return f"no {request.question}" if digest(request.target, request.question) % 3 == 0 else request.question

async def judge(request):
    await asyncio.sleep(0.01)
    return str(digest(request.question) % 11 / 10)
"""

CONFIG = """
targets:
  alpha: {provider: python, callable: "bot:answer", max_concurrency: 32}
  beta: {provider: python, callable: "bot:answer", max_concurrency: 32}
  gamma: {provider: python, callable: "bot:answer", max_concurrency: 32}
  judge: {provider: python, callable: "bot:judge", max_concurrency: 32}
"""

#: Kept warm: a line of JSON in, one out. It asks its session's default target over HTTP, and nothing but what a
#: stranger's program could.
JUDGE = """
import json, sys, urllib.request

class NoProxy(urllib.request.ProxyHandler):
    pass

opener = urllib.request.build_opener(NoProxy({}))
for line in sys.stdin:
    case = json.loads(line)
    env = case["env"]
    question = json.dumps({"question": case["question"] + "|" + case["output"]}).encode()
    asked = urllib.request.Request(env["AGENTV_TARGET_PROXY_URL"] + "/invoke", data=question, headers={
        "Authorization": "Bearer " + env["AGENTV_TARGET_PROXY_TOKEN"], "Content-Type": "application/json"})
    try:
        with opener.open(asked, timeout=60) as response:
            said = json.load(response)
        print(json.dumps({"score": float(said["rawText"])}), flush=True)
    except OSError as error:
        print(json.dumps({"error": str(error)}), flush=True)
"""

EVALUATION = {
    "dataset": "cases.jsonl",
    "targets": list(TARGETS),
    "max_calls": MAX_CALLS,
    "graders": [
        {"name": "same", "builtin": "exact"},
        {
            "name": "judged",
            "command": ["python", "judge.py"],
            "batch": "stdin-lines",
            "judge_target": "judge",
            "target": {"max_calls": CALLS_PER_GRADER},
        },
    ],
}


@dataclass
class FleetUnderTest:
    """A fleet, and a shell before it."""

    fleet: ProcessFleet
    shell: CommandLine
    services: dict[str, Process]

    def run(self, output: str) -> RunningCommand:
        """Start the run into this folder; again, it takes it up."""
        return self.shell.start(
            "run", "eval.yaml", "--output", output, "--graders", str(GRADERS_AT_ONCE), "--concurrency", "32"
        )

    def kill(self, service: str) -> None:
        """Kill a service, and start another one in its place."""
        self.services[service].kill()
        self.services[service] = self.fleet.start("serve", service)


@pytest.fixture
def fleet_under_test(broker_url: str) -> Iterator[FleetUnderTest]:
    with process_fleet(broker_url, CONFIG, targets=[*TARGETS, "judge"]) as fleet:
        fleet.extra_env |= lease_variable()
        (fleet.folder / "bot.py").write_text(BOT)
        (fleet.folder / "judge.py").write_text(JUDGE)
        (fleet.folder / "eval.yaml").write_text(json.dumps(EVALUATION))
        rows = ({"id": f"c{n}", "question": f"question {n}", "expected": f"question {n}"} for n in range(CASES))
        (fleet.folder / "cases.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        services = {name: fleet.start_service(name) for name in ("metadata", "worker")}
        env = {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        with command_line(fleet.folder, env) as shell:
            yield FleetUnderTest(fleet, shell, services)


@pytest.mark.timeout(300)
def test_a_run_whose_worker_metadata_and_runner_are_killed_ends_as_an_undisturbed_one(
    fleet_under_test: FleetUnderTest,
) -> None:
    with command_line(fleet_under_test.fleet.folder) as shell:
        assert shell.start("run", "eval.yaml", "--output", "undisturbed").wait(seconds=120).code == 0
    undisturbed = judgements(fleet_under_test.shell.folder / "undisturbed")
    assert len(undisturbed) == TRIALS

    ended = interrupted_run(fleet_under_test, fleet_under_test.shell.folder / "disturbed", random.Random(SEED))
    assert ended.code == 0, ended
    assert judgements(fleet_under_test.shell.folder / "disturbed") == undisturbed
    assert_every_call_accounted_for(fleet_under_test, fleet_under_test.shell.folder / "disturbed")


def interrupted_run(fleet_under_test: FleetUnderTest, output: Path, random_source: random.Random) -> CommandResult:
    """The run, killed and with its services killed beneath it, given again until it ends well."""
    victims = ["worker", "metadata", "run"]
    random_source.shuffle(victims)
    moments = sorted(random_source.sample(range(TRIALS // 20, TRIALS * 4 // 5), len(victims)))
    running = fleet_under_test.run(output.name)
    for victim, moment in zip(victims, moments, strict=True):
        running.wait_for(has_rows(output, moment), seconds=90)
        if victim == "run":
            running.kill()
            running = fleet_under_test.run(output.name)
        else:
            fleet_under_test.kill(victim)
    for _ in range(3):
        ended = running.wait(seconds=150)
        if ended.code == 0:
            break
        # What failed for want of a service is an error, never a score, and the same command asks it again.
        assert ended.code == 1, ended
        running = fleet_under_test.run(output.name)
    return ended


def has_rows(output: Path, count: int) -> Callable[[RunningCommand], bool]:
    path = output / "results.jsonl"
    return lambda _: path.is_file() and path.read_bytes().count(b"\n") >= count


def judgements(output: Path) -> dict[tuple[str, str], Json]:
    """What a run found, by trial: everything but how long it took and what it cost."""
    found: dict[tuple[str, str], Json] = {}
    for row in rows_of(output):
        graders = row["graders"]
        assert isinstance(graders, dict)
        unequal = {"calls", "sessionId"}  # an interrupted grader starts again in a session of its own
        said = {name: {key: one[key] for key in one.keys() - unequal} for name, one in graders.items()}
        key = (str(row["caseId"]), str(row["target"]))
        assert key not in found, "no row twice"
        found[key] = {"status": row["status"], "output": row["output"], "score": row["score"], "graders": said}
    return found


def assert_every_call_accounted_for(fleet_under_test: FleetUnderTest, output: Path) -> None:
    """Every charged call is an answer of a trial, or one of a grader; all that left no row is what kills wasted."""
    token = (output / "session-token").read_text().split()[0]
    session = token.split("_")[2]
    info = json.loads(fleet_under_test.fleet.quintain("session", "show", session, "--json"))
    charged = info["callCount"]
    assert isinstance(charged, int)
    assert charged <= MAX_CALLS
    assert info["running"] == info["reserved"] == 0
    # The sessions of a killed run's graders are closed when it is taken up; if the worker of a grader's call was killed
    # too, nobody knows whether the provider answered.
    assert info["inDoubt"] <= GRADERS_AT_ONCE * CALLS_PER_GRADER

    record = json.loads((output / "run.json").read_text())
    rows = sum(int(str(row["calls"])) for row in rows_of(output))
    wasted = record["totals"].get("callsWithoutRow", 0)
    assert record["totals"]["calls"] == charged == rows + wasted
    assert wasted <= GRADERS_AT_ONCE * CALLS_PER_GRADER

    ledger = f"sqlite://{(fleet_under_test.fleet.folder / 'state' / 'ledger.sqlite3').absolute()}"
    env = {"QUINTAIN_LEDGER_URL": ledger}
    fleet_under_test.fleet.quintain("ledger", "verify", env=env)
    calls = [
        json.loads(line) for line in fleet_under_test.fleet.quintain("ledger", "export", "--json", env=env).splitlines()
    ]
    own = Counter(call["requestId"] for call in calls if call["sessionId"] == session and call["state"] == "committed")
    tries = sum(int(str(row.get("tries", 1))) for row in rows_of(output))
    assert set(own.values()) == {1}
    # A try that was refused, uncharged, is a number without a call.
    assert TRIALS <= own.total() <= tries
