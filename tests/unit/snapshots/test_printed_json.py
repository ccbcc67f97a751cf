"""The fields of what commands print with ``--json``, as the commands print them, and of the files of a run.

Recorded again as `test_snapshots` says. The services are this process's own, over the memory transport.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import CommandLine, command_line
from support.memory_fleet import ADMIN_TOKEN, memory_fleet
from support.snapshots import fields_of_values, hold

RECORDED = Path(__file__).parent / "recorded"

CONFIG = (
    "targets: {echo: {provider: mock, token_usage: {input: 7, output: 2}}, broken: {provider: mock, fail_rate: 1}}\n"
)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[CommandLine]:
    """A folder of its own, and none of this machine's settings."""
    with command_line(tmp_path) as shell:
        yield shell


def printed(shell: CommandLine, *words: str, code: int = 0) -> dict[str, object]:
    """The one JSON object that a command prints."""
    return shell.run(*words, "--json", code=code).json


def test_what_commands_print_of_a_run(shell: CommandLine) -> None:
    demo = fields_of_values(printed(shell, "demo"))
    folder = shell.folder / "quintain-demo"
    again = ("--config", str(folder / "quintain.yaml"))
    other = str(shell.folder / "other")
    shutil.copytree(folder / "demo-results", other)  # it has all answers: nothing is asked again
    fields = {"run": fields_of_values(printed(shell, "run", str(folder / "eval.yaml"), "--output", other, *again))}
    assert fields["run"] == demo
    (shell.folder / "broken.yaml").write_text("targets: {broken: {provider: mock, fail_rate: 1, max_tries: 1}}\n")
    (shell.folder / "eval.yaml").write_text(
        f"dataset: {folder}/cases.jsonl\ngraders: [{{name: same, builtin: exact}}]\n"
    )
    fields["run of a parked target"] = fields_of_values(
        printed(shell, "run", "eval.yaml", "--config", "broken.yaml", "--fail-fast", code=1)
    )
    fields["check"] = fields_of_values(printed(shell, "check", str(folder / "eval.yaml"), *again))
    results = folder / "demo-results"
    fields["report"] = fields_of_values(printed(shell, "report", str(results)))
    fields["compare"] = fields_of_values(printed(shell, "compare", str(results), other))
    rows = [json.loads(line) for line in (results / "results.jsonl").read_text().splitlines()]
    fields["results.jsonl"] = fields_of_values(*rows)
    calls = [json.loads(line) for line in (results / "calls.jsonl").read_text().splitlines()]
    fields["calls.jsonl"] = fields_of_values(*calls)
    record = json.loads((results / "run.json").read_text())
    # Which revision it was depends on where this folder lies.
    record["revision"] = None
    fields["run.json"] = fields_of_values(record)
    fields["run of no file"] = fields_of_values(printed(shell, "run", "none.yaml", code=2))
    audited = shell.with_environment({"QUINTAIN_LEDGER_URL": f"sqlite://{results / 'ledger.sqlite3'}"})
    fields["ledger verify"] = fields_of_values(printed(audited, "ledger", "verify"))
    hold(RECORDED / "printed_run.json", fields)


async def test_what_commands_print_of_a_session(shell: CommandLine) -> None:
    fields = {}

    async def keep(*words: str, code: int = 0) -> dict[str, object]:
        said = await asyncio.to_thread(printed, shell.with_environment(env), *words, code=code)
        fields[" ".join(words[:2])] = fields_of_values(said)
        return said

    async with memory_fleet(shell.folder, CONFIG) as fleet:
        env = {"QUINTAIN_GATEWAY_URL": fleet.gateway_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        opened = await keep("session", "open", "--default-target", "echo", "--max-calls", "2")
        env["QUINTAIN_SESSION_TOKEN"] = str(opened["token"])
        await keep("invoke", "hello")
        await keep("invoke", "failed", "--target", "broken", code=1)
        await keep("info")
        await keep("snippet", "openai")
        await keep("session", "list")
        await keep("session", "show", str(opened["sessionId"]))
        await keep("session", "close", str(opened["sessionId"]))
    hold(RECORDED / "printed_session.json", fields)
