"""``quintain export``: a run as logs of Inspect, as a run of AgentV and as CSV."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import CommandLine, command_line
from support.evaluations import write_files
from support.running_gateway import run_program

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
    # Inspect lists logs that are named so.
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d_[a-z-]+_[0-9a-f]{16}\.json", path.name) for path in paths)
    assert [path.name.split("_")[1] for path in paths] == ["eval-echo", "eval-broken"]
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


@pytest.mark.timeout(700)
def test_agentvs_own_commands_read_the_run_without_an_error(shell: CommandLine, agentv: Path) -> None:
    done = shell.run("export", "runs/eval", "--to", "agentv", "--json").json
    (index,) = done["files"]
    workspace = str((shell.folder / index).parent)
    env = {**shell.env, "CI": "true"}
    checked = run_program([str(agentv), "results", "validate", workspace], env, shell.folder)
    assert checked.code == 0, checked
    # AgentV warns of rows that no grader graded: those of the target that failed.
    assert "0 error(s), 6 warning(s)" in checked.stdout, checked
    compared = run_program(
        [str(agentv), "compare", workspace, "--baseline", "broken", "--candidate", "echo", "--json"], env, shell.folder
    )
    matched = json.loads(compared.stdout)["matched"]
    assert {(each["test_id"], each["score1"], each["score2"]) for each in matched} == {
        (f"case-{case}#{repeat}", 0, 1) for case in (1, 2, 3) for repeat in (1, 2)
    }


def test_agentvs_index_has_a_line_for_each_row(shell: CommandLine) -> None:
    (path,) = shell.run("export", "runs/eval", "--to", "agentv", "--output", "agentv").stdout.split()
    lines = [json.loads(line) for line in (shell.folder / path).read_text().splitlines()]
    assert sorted((line["target"], line["execution_status"], line["score"]) for line in lines) == [
        *[("broken", "execution_error", 0)] * 6,
        *[("echo", "ok", 1.0)] * 6,
    ]
    first = next(line for line in lines if (line["target"], line["test_id"]) == ("echo", "case-1#1"))
    assert (shell.folder / path).parent.joinpath(first["answer_path"]).read_text() == "q1"
    assert (shell.folder / path).parent.joinpath(first["input_path"]).read_text() == "@[user]:\nq1"
