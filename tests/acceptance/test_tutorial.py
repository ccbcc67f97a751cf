"""docs/tutorial.md, followed from its first block to its last one by a reader without a key."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.command_line import command_line
from support.evaluations import rows_of
from support.page_shell import WORKFLOW, PageShell, Tutorial, running_stand_in

#: The broker's address, as the page has it.
BROKER = "amqp://guest:guest@127.0.0.1:5672/"


def failed(run: Path, target: str) -> set[object]:
    return {
        row["caseId"]
        for row in rows_of(run)
        if row["target"] == target and not all(verdict["pass"] for verdict in row["graders"].values())
    }


@pytest.mark.timeout(600)  # a few hundred calls, on a machine with much to do
def test_an_evaluation_from_an_empty_folder_to_a_decision(tmp_path: Path, broker_url: str) -> None:
    with running_stand_in() as port, command_line(tmp_path) as shell:
        reader = Tutorial(shell, port)
        for number in range(1, 10):
            reader.follow(number)
        # What chapter 7 filters by, and how many cases it says that are left.
        run = reader.folder / "runs" / "triage"
        assert len(failed(run, "small") - failed(run, "large")) == 9
        run_workflow(reader, tmp_path / "checkout")
        reader.replaced[BROKER] = broker_url
        reader.follow(10)


def run_workflow(reader: Tutorial, folder: Path) -> None:
    """Run the commands of the workflow where they find what is committed."""
    shutil.copytree(reader.folder, folder, ignore=shutil.ignore_patterns("runs"))
    summary = folder / "summary.md"
    shell = reader.shell.in_folder(folder).with_environment({"GITHUB_STEP_SUMMARY": str(summary)})
    PageShell(shell).run_workflow(reader.file(9, WORKFLOW))
    assert summary.read_text()
