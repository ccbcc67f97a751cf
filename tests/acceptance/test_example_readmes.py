"""The commands of the examples' README files, run as they are written; and the workflow of the regression gate.

Addresses, keys and tokens are replaced by those of the test, and nothing else is. A block of a service is started. The
lines of ``capitals`` are run by ``test_run.py``.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from generate.checkout import copy_tracked, tracked
from support.command_line import CommandLine, command_line
from support.page_shell import PageShell
from support.pages import SHELL_BLOCK, shell_blocks
from support.running_gateway import ADMIN_TOKEN
from support.servers.ports import free_port, is_open
from support.waiting import block_until

EXAMPLES = Path(__file__).parents[2] / "examples"


class Example(PageShell):
    """A copy of an example's folder, and a shell in it that runs the lines of its README."""

    def __init__(self, name: str, shell: CommandLine) -> None:
        copy_tracked(EXAMPLES / name, shell.folder)
        super().__init__(shell)
        self.blocks = shell_blocks(EXAMPLES / name / "README.md")

    def rows(self, run: str = "runs/eval") -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / run / "results.jsonl").read_text().splitlines()]


@pytest.fixture
def fleet_shell(broker_url: str, tmp_path: Path) -> Iterator[CommandLine]:
    """A shell in an empty folder, before a broker."""
    with command_line(tmp_path, {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}) as shell:
        yield shell


def test_each_folder_has_a_short_readme_that_the_list_names() -> None:
    folders = {path.relative_to(EXAMPLES).parts[0] for path in tracked("examples/*/**/*")}
    linked = set(re.findall(r"\]\(([\w-]+)/\)", (EXAMPLES / "README.md").read_text()))
    assert folders == linked
    for folder in folders:
        text = re.sub(SHELL_BLOCK, "", (EXAMPLES / folder / "README.md").read_text())
        assert len(text.splitlines()) <= 20, folder


def test_the_ci_gate_passes_until_answers_are_worse(shell: CommandLine) -> None:
    example = Example("ci-gate", shell.with_environment({"GITHUB_STEP_SUMMARY": str(shell.folder / "summary.md")}))
    for line in example.blocks[0]:
        example.run(line)
    workflow = (example.folder / "evaluate.yml").read_text()
    example.run_workflow(workflow)
    bot = example.folder / "bot.py"
    bot.write_text(bot.read_text().replace("int(second))", "int(second) % 3)"))
    example.run_workflow(workflow, last_code=3)
    assert (example.folder / "junit.xml").is_file()
    assert (example.folder / "summary.md").read_text()


@pytest.mark.timeout(700)
def test_clients(shell: CommandLine, node: str) -> None:
    example = Example("clients", shell.with_environment({"QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}))
    example.shell = example.shell.with_environment({"PATH": f"{Path(node).parent}:{example.shell.env['PATH']}"})
    ((up,), lines) = example.blocks
    example.start(f"{up} --port 0", "try ")
    url = re.findall(r"http://127\.0\.0\.1:\d+", (example.shell._started[0]).stdout)[0]
    printed, token = [], ""
    for line in lines:
        ended = example.run(line, replaced={"http://127.0.0.1:8787": url, "the-token-it-printed": token})
        if ended is not None:
            printed.append(ended.stdout)
            token = token or ended.stdout.split()[-1]
    _, sync, curl, openai, anthropic, _ = printed
    assert sync == "Paris 1 of 50\n"
    assert json.loads(curl)["rawText"] == "Paris"
    assert openai == anthropic == "whole: Paris\npieces:Paris\n"
    assert [row["score"] for row in example.rows()] == [1.0]


def test_red_team(fleet_shell: CommandLine) -> None:
    example = Example("red-team", fleet_shell)
    (host,), (up,), (run,) = example.blocks
    example.start(host, "ready  host")
    example.start(f"{up} --port 0", "try ")
    example.run(run, code=3)
    leaked = {row["caseId"] for row in example.rows() if row["score"] == 0.0}
    assert (leaked, len(example.rows())) == ({"staff", "spelled", "reversed"}, 7)


def test_agents(shell: CommandLine) -> None:
    """`tests/clients/test_agents.py` and `test_a2a.py` there have those that need a framework."""
    example = Example("agents", shell)
    function, _, (serve,), (run,) = example.blocks
    for line in function:
        example.run(line)
    assert {row["caseId"]: row["score"] for row in example.rows()} == {"ostend": 1.0, "dover": 1.0}
    port = str(free_port())
    example.shell = example.shell.with_environment({"AGENT_PORT": port})
    words = shlex.split(serve.replace("9998", port))
    with subprocess.Popen([sys.executable, *words[1:]], cwd=example.folder, stderr=subprocess.DEVNULL) as endpoint:
        try:
            block_until(lambda: is_open(int(port)))
            example.run(run)
        finally:
            endpoint.kill()
    rows = [row for row in example.rows() if row["target"] == "endpoint"]
    assert {row["caseId"]: row["score"] for row in rows} == {"ostend": 1.0, "dover": 1.0}
    steps = [row["answer"]["steps"] for row in rows]
    assert [[step["gen_ai.tool.name"] for step in each] for each in steps] == [["tides"], ["tides"]]


def test_two_machines(fleet_shell: CommandLine) -> None:
    example = Example("two-machines", fleet_shell)
    on_a, on_b, anywhere = example.blocks
    services = [line for line in (*on_a, *on_b) if line.startswith("quintain")]
    metadata, *workers = services
    example.start(metadata, "ready")
    for line in workers:
        example.start(line, "ready")
    for line in anywhere:
        example.run(line)
    assert {row["caseId"]: row["score"] for row in example.rows()} == {"fr": 1.0, "it": 0.5}


def test_real_model_is_checked_without_a_call(shell: CommandLine) -> None:
    """tests/unit/runner/test_json_schemas.py has the rest; the model providers have tests of their own."""
    copy_tracked(EXAMPLES / "capitals", shell.folder / "capitals")
    (shell.folder / "real-model").mkdir()
    example = Example("real-model", CommandLine(shell.folder / "real-model", shell.env))
    for line in example.blocks[0]:
        if not line.startswith("quintain run"):
            example.run(line)
