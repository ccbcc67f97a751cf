"""A fleet of real processes whose target changes beneath it: what runs ask, and what `quintain status` says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from support.command_line import CommandLine
from support.evaluations import Json, rows_of, write_files
from support.process_fleet import fleet_shell
from support.quick import lease_variable
from support.waiting import block_until

CONFIG = "targets: {bot: {provider: command, command: [sh, bot.sh]}}\n"
BOT = "cat > /dev/null; echo . >> asked.txt; echo {answer}\n"
EVALUATION = "dataset: cases.jsonl\ntargets: [bot]\ngraders: [{name: same, builtin: exact}]\n"


@pytest.fixture
def shell(broker_url: str) -> Iterator[CommandLine]:
    with fleet_shell(broker_url, CONFIG, targets=["bot"], variables=lease_variable()) as shell:
        write_files(shell.folder, cases=3, bot_sh=BOT.format(answer="one"), eval_yaml=EVALUATION)
        shell.serve("metadata", "worker")
        yield shell


def target(shell: CommandLine) -> Json:
    told = shell.run("status", "--wait", "0.3", "--json").json
    found = told["targets"]
    (one,) = found
    assert isinstance(one, dict)
    return one


def asked(shell: CommandLine) -> int:
    path = shell.folder / "asked.txt"
    count = path.read_text().count("\n") if path.exists() else 0
    path.unlink(missing_ok=True)
    return count


def test_a_program_that_changes_beneath_its_worker_is_asked_again_and_another_worker_is_a_warning(
    shell: CommandLine,
) -> None:
    shell.run("run", "eval.yaml")
    assert asked(shell) == 3
    before = target(shell)["workersByFingerprint"]
    (shell.folder / "bot.sh").write_text(BOT.format(answer="two"))
    block_until(lambda: target(shell)["workersByFingerprint"] != before)
    shell.run("run", "eval.yaml")
    assert asked(shell) == 3
    assert {str(row["output"]).strip() for row in rows_of(shell.folder / "runs" / "eval")} == {"two"}

    other = shell.folder / "other"
    other.mkdir()
    for name in ("quintain.yaml", "bot.sh"):
        shutil.copyfile(shell.folder / name, other / name)
    (other / "bot.sh").write_text(BOT.format(answer="three"))
    shell.in_folder(other).serve("worker")
    told = shell.run("status", "--json").json
    warnings = told["warnings"]
    assert isinstance(warnings, list)
    assert (told["exitCode"], told["problems"], len(warnings)) == (0, [], 1)
    services = [line["says"] for line in shell.run("doctor", "--json").json["lines"] if line["what"] == "services"]
    assert ["different configurations" in says for says in services] == [True]
