"""Agents whose run or worker is killed with SIGKILL: a conversation goes on, or begins again and is counted, and who
may have acted is not asked again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.command_line import CommandLine, RunningCommand, command_line
from support.evaluations import Json, rows_of, totals_of
from support.process_fleet import ADMIN_TOKEN, Process, ProcessFleet, process_fleet
from support.quick import lease_variable

# A conversation of five turns that is killed at its third: a model's goes on there, a held one begins again, counted.


#: Both write down each turn that they begin, and wait in the third while a file is there.
MODEL = """
import asyncio, json
from pathlib import Path

async def answer(request):
    messages = request.messages
    number = sum(message.role == "user" for message in messages)
    with Path("asked.txt").open("a") as asked:
        asked.write(f"model {number}\\n")
    while number == 3 and Path("hold").exists():
        await asyncio.sleep(0.02)
    return " ".join(message.content for message in messages if message.role == "user")
"""

PROGRAM = """
import json, sys, time
from pathlib import Path

said = []
for line in sys.stdin:
    turn = json.loads(line)
    if turn["type"] != "turn":
        break
    with Path("asked.txt").open("a") as asked:
        asked.write(f"program {turn['number']}\\n")
    while Path("hold").exists() and turn["number"] == 3:
        time.sleep(0.02)
    said.append(turn["prompt"])
    print(json.dumps({"type": "answer", "text": " ".join(said)}), flush=True)
"""

CONFIG = """
targets:
  model: {provider: python, callable: "bot:answer"}
  program: {provider: command, protocol: jsonl, command: [python, program.py]}
"""

TURNS = ["one", "two", "three", "four", "five"]


@dataclass
class Fleet:
    """A fleet, and a shell before it."""

    fleet: ProcessFleet
    shell: CommandLine
    worker: Process

    def run(self, target: str) -> RunningCommand:
        """Start the run of one target, or take it up."""
        return self.shell.start("run", "eval.yaml", "--target", target, "--output", target)

    def replace_worker(self) -> None:
        """Kill the worker, let turns go on, and start another worker."""
        self.worker.kill()
        (self.shell.folder / "hold").unlink()
        self.fleet.start("serve", "worker")

    def asked(self, target: str) -> list[int]:
        """The turns that the target began, in order."""
        path = self.shell.folder / "asked.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(target)]

    def row(self, target: str) -> Json:
        """The one row of the run."""
        (row,) = rows_of(self.shell.folder / target)
        return row


@pytest.fixture
def fleet(broker_url: str) -> Iterator[Fleet]:
    with process_fleet(broker_url, CONFIG, targets=["model", "program"]) as started:
        started.extra_env |= lease_variable()
        folder: Path = started.folder
        (folder / "bot.py").write_text(MODEL)
        (folder / "program.py").write_text(PROGRAM)
        (folder / "eval.yaml").write_text(
            json.dumps({"dataset": "cases.jsonl", "graders": [{"name": "same", "builtin": "exact"}]})
        )
        case = {"id": "talk", "turns": TURNS, "expected": " ".join(TURNS)}
        (folder / "cases.jsonl").write_text(json.dumps(case) + "\n")
        (folder / "hold").touch()
        _, worker = (started.start_service(name) for name in ("metadata", "worker"))
        env = {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        with command_line(folder, env) as shell:
            yield Fleet(started, shell, worker)


def usage_of(output: Path) -> int:
    """How many calls the run's sessions were charged."""
    total = totals_of(output)["calls"]
    assert isinstance(total, int)
    return total


@pytest.mark.timeout(120)
@pytest.mark.parametrize("target", ["model", "program"])
def test_a_killed_run_goes_on_at_the_first_turn_without_an_answer(fleet: Fleet, target: str) -> None:
    """The worker lives: also a conversation that it holds goes on there."""
    running = fleet.run(target)
    running.wait_for(lambda _: fleet.asked(target) == [1, 2, 3], seconds=60)
    running.kill()
    (fleet.shell.folder / "hold").unlink()
    ended = fleet.run(target).wait(seconds=60)
    assert ended.code == 0, ended
    row = fleet.row(target)
    assert (row["output"], row["score"], row["calls"]) == (" ".join(TURNS), 1.0, 5)
    assert (fleet.asked(target), usage_of(fleet.shell.folder / target)) == ([1, 2, 3, 4, 5], 5)


@pytest.mark.timeout(120)
def test_a_held_conversation_begins_again_when_its_worker_is_killed(fleet: Fleet) -> None:
    running = fleet.run("program")
    running.wait_for(lambda _: fleet.asked("program") == [1, 2, 3], seconds=60)
    fleet.replace_worker()
    ended = running.wait(seconds=90)
    assert ended.code == 0, ended
    row = fleet.row("program")
    conversation = row["conversation"]
    assert isinstance(conversation, dict)
    assert (row["output"], row["score"]) == (" ".join(TURNS), 1.0)
    assert (conversation["attempts"], conversation["lostTurns"]) == (2, 2)
    # Two turns that were answered, the one that ran, and five: nothing is charged twice, and nothing is hidden.
    assert (row["calls"], usage_of(fleet.shell.folder / "program")) == (8, 8)
    assert fleet.asked("program") == [1, 2, 3, 1, 2, 3, 4, 5]
    assert totals_of(fleet.shell.folder / "program")["lostTurns"] == 2
    assert "2 turns of conversations were lost" in ended.stdout + ended.stderr


# A worker is killed while an agent works for it: nobody asks the agent again, because it may have acted.


class Endpoint(ThreadingHTTPServer):
    """Answers nothing before ``released``, and counts its requests."""

    def __init__(self) -> None:
        self.asked = 0
        self.released = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint.asked += 1
                endpoint.released.wait(120)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.released.set()
        server.shutdown()


#: Writes down that it was asked, and does not answer.
SILENT_PROGRAM = """
import sys, time
with open("asked.txt", "a") as asked:
    for line in sys.stdin:
        print("asked", file=asked, flush=True)
        time.sleep(120)
"""


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["http", "jsonl"])
def test_an_agent_is_asked_once(broker_url: str, endpoint: Endpoint, kind: str) -> None:
    target = "{provider: command, protocol: jsonl, command: [python, agent.py]}"
    if kind == "http":
        target = f'{{provider: http, url: "http://127.0.0.1:{endpoint.server_port}/", body: {{q: "{{{{ prompt }}}}"}}}}'
    with process_fleet(broker_url, f"targets:\n  desk: {target}\n", targets=["desk"]) as fleet:
        (fleet.folder / "agent.py").write_text(SILENT_PROGRAM)
        (fleet.folder / "asked.txt").touch()

        def asked() -> int:
            return endpoint.asked + len((fleet.folder / "asked.txt").read_text().splitlines())

        fleet.extra_env |= lease_variable()
        grader = {"name": "any", "builtin": "regex", "pattern": "."}
        (fleet.folder / "eval.yaml").write_text(json.dumps({"dataset": "cases.jsonl", "graders": [grader]}))
        (fleet.folder / "cases.jsonl").write_text('{"id": "a", "question": "Book it"}\n')
        _, worker = (fleet.start_service(name) for name in ("metadata", "worker"))
        env = {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        with command_line(fleet.folder, env) as shell:
            running = shell.start("run", "eval.yaml", "--output", "run")
            running.wait_for(lambda _: asked() == 1, seconds=60)
            worker.kill()
            fleet.start("serve", "worker")
            ended = running.wait(seconds=90)
        assert ended.code == 1, ended
        (row,) = rows_of(fleet.folder / "run")
        assert (row["status"], row["error"]["code"], row["calls"]) == ("inDoubt", "worker_lost", 1)  # type: ignore[index]
        assert asked() == 1
