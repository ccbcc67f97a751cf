"""The table of commands: each line says what its command's docstring says, and help imports none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quintain_cli.__main__ import COMMANDS, GROUPS, LazyCommand, app, main, summary_of
from support.command_line import clean_environment


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_loads_and_its_line_is_the_first_sentence_of_its_docstring(words: str) -> None:
    command = LazyCommand(words, COMMANDS[words]).load_command()
    assert command.name == words
    assert " ".join(command.help.split()).startswith(summary_of(COMMANDS[words]).removesuffix("."))


@pytest.mark.parametrize("words", ["", *GROUPS, *COMMANDS])
def test_every_command_and_group_prints_its_help(words: str) -> None:
    short, long = (CliRunner().invoke(app, [*words.split(), option]) for option in ("-h", "--help"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert short.stdout.startswith("Usage: ")
    assert ("--json" in short.stdout) == (words in COMMANDS)
    told = summary_of(COMMANDS[words]) if words in COMMANDS else GROUPS.get(words, app.info.help)
    assert "".join(told.split()) in "".join(short.stdout.split())


def test_windows_is_refused_before_any_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


def test_every_group_has_a_help_and_commands() -> None:
    assert {words.partition(" ")[0] for words in COMMANDS if " " in words} == set(GROUPS)
    assert all(text.endswith(".") for text in GROUPS.values())


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_neither_help_nor_the_version_imports_a_command(option: str) -> None:
    words = (
        "import sys; from quintain_cli.__main__ import app; "
        f"app(['{option}'], standalone_mode=False); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stderr.split())
    ours = {name for name in loaded if name.startswith("quintain")}
    assert ours == {"quintain_cli", "quintain_cli.__main__"}
    assert loaded.isdisjoint({"pydantic", "rich", "aio_pika", "asyncio"})


#: What takes long to import, and only some runs need.
ON_DEMAND = {
    "aio_pika", "aiohttp", "genai_prices", "jinja2", "jsonschema_rs", "quintain_gateway", "quintain_view", "rapidfuzz",
    "starlette", "uvicorn",
}  # fmt: skip


def test_a_run_imports_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    (tmp_path / "quintain.yaml").write_text('{targets: {m: {provider: mock, response: "4"}}}')
    (tmp_path / "eval.yaml").write_text("{dataset: cases.jsonl, graders: [{name: same, builtin: exact}]}")
    (tmp_path / "cases.jsonl").write_text(json.dumps({"id": "1", "question": "2 + 2?", "expected": "4"}))
    words = (
        "import sys; from quintain_cli.__main__ import LazyCommand, app; "
        "LazyCommand('run', 'run:run').load_command(); print(*sys.modules, file=sys.stderr); "
        "app(['run', 'eval.yaml', '--json'], standalone_mode=False); "
        "print(*sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", words]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=True, timeout=60
    )
    started, *_, ended = (set(line.split()) for line in done.stderr.splitlines())
    assert json.loads(done.stdout)["exitCode"] == 0
    assert started.isdisjoint({*ON_DEMAND, "numpy"})
    assert ended.isdisjoint(ON_DEMAND)
