"""``quintain demo``: everything in a minute, with no key and no broker, as often as one likes."""

from __future__ import annotations

import json

from support.command_line import CommandLine

FILES = {"bot.py", "cases.jsonl", "eval.yaml", "judge.py", "quintain.yaml"}


def test_the_demo_runs_again_and_takes_nothing_away_that_it_did_not_make(shell: CommandLine) -> None:
    folder = shell.folder / "quintain-demo"
    theirs = folder / "results" / "of-another-run.jsonl"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("months of work\n")
    shown = shell.run("demo", env={"QUINTAIN_CONFIG": "of-another-evaluation.yaml"})
    lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in shown.stdout.splitlines() if "│" in line]
    assert [line[:4] for line in lines[:3]] == [
        ["scholar", "12/12", "76-100 %", "1.000"],
        ["guesser", "7/12", "32-81 %", "0.625"],
        ["all", "19/24", "-", "0.812"],
    ]
    assert shown.stdout.splitlines()[-1].startswith("exit 0: ")
    assert {path.name for path in folder.iterdir()} >= FILES
    assert len((folder / "demo-results" / "results.jsonl").read_text().splitlines()) == 24

    (row, *others) = (folder / "cases.jsonl").read_text().splitlines()
    (folder / "cases.jsonl").write_text("\n".join([json.dumps({**json.loads(row), "id": "mine"}), *others]) + "\n")
    again = shell.run("demo", "--folder", "quintain-demo", "--json")
    assert again.stderr == ""
    totals = again.json["totals"]
    assert (totals["cases"], totals["graded"], totals["errors"], totals["calls"]) == (12, 24, 0, 48)
    ids = {json.loads(line)["caseId"] for line in (folder / "demo-results" / "results.jsonl").read_text().splitlines()}
    assert "mine" in ids
    assert theirs.read_text() == "months of work\n"


def test_a_folder_that_cannot_be_written_is_refused(shell: CommandLine) -> None:
    (shell.folder / "file").touch()
    assert shell.run("demo", "--folder", "file/new", "--json", code=2).json["code"] == "config_error"
