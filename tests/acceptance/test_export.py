"""``quintain export``: a run as logs of Inspect and as CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import CommandLine, command_line
from support.evaluations import write_files

CONFIG = "targets:\n  echo: {provider: mock}\n  broken: {provider: mock, fail_rate: 1, max_tries: 1}\n"
EVALUATION = "dataset: cases.jsonl\ntargets: [echo, broken]\nrepeats: 2\ngraders: [{name: same, builtin: exact}]\n"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A shell in which a run has ended: a target that answers, and one that fails."""
    with command_line(tmp_path_factory.mktemp("export")) as shell:
        write_files(shell.folder, quintain_yaml=CONFIG, eval_yaml=EVALUATION)
        shell.run("run", "eval.yaml", code=1)
        yield shell


def test_inspects_logs_have_a_sample_for_each_row(shell: CommandLine) -> None:
    done = shell.run("export", "runs/eval", "--to", "inspect")
    assert done.code == 0
    paths = [shell.folder / line for line in done.stdout.split()]
    assert [path.name for path in paths] == ["eval-1-echo.json", "eval-2-broken.json"]
    echo, broken = (json.loads(path.read_text()) for path in paths)
    assert (echo["version"], echo["status"], echo["eval"]["model"]) == (2, "success", "echo")
    assert echo["eval"]["config"] == {"epochs": 2}
    (score,) = echo["results"]["scores"]
    assert (score["name"], score["metrics"]["mean"]["value"]) == ("same", 1.0)
    samples = {(sample["id"], sample["epoch"]): sample for sample in echo["samples"]}
    assert len(samples) == 6
    sample = samples["case-1", 2]
    assert (sample["input"], sample["target"], sample["output"]["completion"]) == ("q1", "q1", "q1")
    assert sample["scores"]["same"]["value"] == 1.0
    assert broken["results"] == {"total_samples": 6, "completed_samples": 0, "scores": []}
    assert all(sample["error"]["message"].startswith("provider_error: ") for sample in broken["samples"])


def test_csv_has_a_line_for_each_row(shell: CommandLine) -> None:
    assert shell.run("export", "runs/eval", "--to", "csv", "--output", "all.csv").code == 0
    with Path(shell.folder, "all.csv").open(encoding="utf-8-sig", newline="") as file:
        assert len(list(csv.DictReader(file))) == 12
