"""The table of commands: each line says what its command's docstring says, and help imports none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from quintain_cli.__main__ import COMMANDS, GROUPS, LazyCommand, app, main, summary_of


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
