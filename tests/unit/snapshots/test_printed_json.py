"""The fields of what commands print with ``--json``, as the commands print them, and of the files of a run.

Recorded again as `test_snapshots` says. The services are this process's own, over the memory transport.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quintain_cli.__main__ import app
from support.memory_fleet import ADMIN_TOKEN, memory_fleet
from support.snapshots import fields_of_values, hold

RECORDED = Path(__file__).parent / "recorded"

CONFIG = (
    "targets: {echo: {provider: mock, token_usage: {input: 7, output: 2}}, broken: {provider: mock, fail_rate: 1}}\n"
)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, and none of this machine's settings."""
    for name in [name for name in os.environ if name.startswith(("QUINTAIN_", "OTEL_"))]:
        if name != "QUINTAIN_RECORD_SNAPSHOTS":
            monkeypatch.delenv(name)
    monkeypatch.setenv("QUINTAIN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def printed(*words: str, code: int = 0) -> object:
    """The one JSON value that a command prints."""
    ended = CliRunner().invoke(app, [*words, "--json"])
    assert ended.exit_code == code, (words, ended.output, ended.stderr)
    return json.loads(ended.stdout)


def test_what_commands_print_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"demo": fields_of_values(printed("demo"))}
    folder = Path("quintain-demo")
    again = ("--config", str(folder / "quintain.yaml"))
    other = str(tmp_path / "other")
    fields["run"] = fields_of_values(printed("run", str(folder / "eval.yaml"), "--output", other, *again))
    (tmp_path / "broken.yaml").write_text("targets: {broken: {provider: mock, fail_rate: 1, max_tries: 1}}\n")
    (tmp_path / "eval.yaml").write_text(f"dataset: {folder}/cases.jsonl\ngraders: [{{name: same, builtin: exact}}]\n")
    fields["run of a parked target"] = fields_of_values(
        printed("run", "eval.yaml", "--config", "broken.yaml", "--fail-fast", code=1)
    )
    fields["check"] = fields_of_values(printed("check", str(folder / "eval.yaml"), *again))
    results = folder / "demo-results"
    fields["report"] = fields_of_values(printed("report", str(results)))
    fields["compare"] = fields_of_values(printed("compare", str(results), other))
    rows = [json.loads(line) for line in (results / "results.jsonl").read_text().splitlines()]
    fields["results.jsonl"] = fields_of_values(*rows)
    calls = [json.loads(line) for line in (results / "calls.jsonl").read_text().splitlines()]
    fields["calls.jsonl"] = fields_of_values(*calls)
    record = json.loads((results / "run.json").read_text())
    # Which revision it was depends on where this folder lies.
    record["revision"] = None
    fields["run.json"] = fields_of_values(record)
    fields["run of no file"] = fields_of_values(printed("run", "none.yaml", code=2))
    monkeypatch.setenv("QUINTAIN_LEDGER_URL", f"sqlite://{(results / 'ledger.sqlite3').absolute()}")
    fields["ledger verify"] = fields_of_values(printed("ledger", "verify"))
    hold(RECORDED / "printed_run.json", fields)


async def test_what_commands_print_of_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {}

    async def keep(*words: str, code: int = 0) -> dict[str, object]:
        said = await asyncio.to_thread(printed, *words, code=code)
        assert isinstance(said, dict)
        fields[" ".join(words[:2])] = fields_of_values(said)
        return said

    async with memory_fleet(tmp_path, CONFIG) as fleet:
        monkeypatch.setenv("QUINTAIN_GATEWAY_URL", fleet.gateway_url)
        monkeypatch.setenv("QUINTAIN_ADMIN_TOKEN", ADMIN_TOKEN)
        opened = await keep("session", "open", "--default-target", "echo", "--max-calls", "2")
        monkeypatch.setenv("QUINTAIN_SESSION_TOKEN", str(opened["token"]))
        await keep("invoke", "hello")
        await keep("invoke", "failed", "--target", "broken", code=1)
        await keep("info")
        await keep("snippet", "openai")
        await keep("session", "list")
        await keep("session", "show", str(opened["sessionId"]))
        await keep("session", "close", str(opened["sessionId"]))
    hold(RECORDED / "printed_session.json", fields)
