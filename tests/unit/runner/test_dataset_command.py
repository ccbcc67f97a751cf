"""A dataset that a program prints: run once, kept beside the results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain_runner.plan.dataset import open_dataset, read_cases
from quintain_runner.spec.evaluation import Evaluation, load_evaluation
from support.evaluations import EXACT, EvaluationFolder
from support.fake_client import FakeClient

#: Prints other cases each time it runs.
PROGRAM = """
import json, os, pathlib
runs = pathlib.Path("runs.txt")
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
for n in range(3):
    case_id = f"{len(runs.read_text())}-{n}"
    print(json.dumps({"id": case_id, "question": "q", "expected": "q", "env": sorted(os.environ)}))
"""


def evaluation(folder: Path, source: str = PROGRAM, **dataset: object) -> Evaluation:
    (folder / "cases.py").write_text(source)
    path = folder / "eval.yaml"
    content = {
        "dataset": {"command": [sys.executable, "cases.py"], **dataset},
        "graders": [EXACT],
    }
    path.write_text(json.dumps(content))
    return load_evaluation(path)


def test_a_program_is_run_once_and_its_cases_are_kept(tmp_path: Path) -> None:
    kept = tmp_path / "out"
    asked = evaluation(tmp_path, env={"OWN": "1"}, env_from=["LISTED"])
    env = {"LISTED": "x", "OTHER": "z", "QUINTAIN_ADMIN_TOKEN": "y"}
    facts = open_dataset(asked, kept, env)
    cases = list(read_cases(facts.source))
    assert [case.id for case in cases] == ["1-0", "1-1", "1-2"]
    assert {"LISTED", "OWN"} < set(cases[0].metadata["env"])
    assert not {"OTHER", "QUINTAIN_ADMIN_TOKEN"} & set(cases[0].metadata["env"])
    again = open_dataset(asked, kept, {})
    assert again == facts
    assert (tmp_path / "runs.txt").read_text() == "x"


def test_another_choice_of_the_same_program_runs_it_no_second_time(tmp_path: Path) -> None:
    open_dataset(evaluation(tmp_path), tmp_path, {})
    facts = open_dataset(evaluation(tmp_path, limit=2), tmp_path, {})
    assert [case.id for case in read_cases(facts.source)] == ["1-0", "1-1"]
    assert (tmp_path / "runs.txt").read_text() == "x"


def test_a_program_may_print_csv(tmp_path: Path) -> None:
    source = "print('id,question\\n1,q\\n2,r')"
    facts = open_dataset(evaluation(tmp_path, source, format="csv"), tmp_path, {})
    assert [case.question for case in read_cases(facts.source)] == ["q", "r"]


async def test_a_run_that_is_taken_up_has_the_cases_of_before(tmp_path: Path) -> None:
    evaluation(tmp_path)
    folder = EvaluationFolder(tmp_path, FakeClient(max_calls=2))
    parked = await folder.run()
    assert (parked.total.cases, parked.total.graded) == (3, 2)
    folder.client.max_calls = 3
    ended = await folder.run()
    assert (ended.total.cases, ended.total.graded) == (3, 3)
    assert {row.case_id for row in folder.rows()} == {"1-0", "1-1", "1-2"}


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import sys; print('{}'); sys.exit('no database')", r"its command failed, exit code 1: no database"),
        ("raise SystemExit(3)", r"its command failed, exit code 3, and it wrote nothing on stderr"),
        ("print('nonsense')", "line 1: it is not JSON"),
        ("", "the dataset has no cases"),
    ],
)
def test_a_program_that_fails_is_told_and_nothing_of_a_half_dataset_is_kept(
    tmp_path: Path, source: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        open_dataset(evaluation(tmp_path, source), tmp_path / "out", {})
    assert list((tmp_path / "out").iterdir()) == []


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    missing = evaluation(tmp_path)
    path = missing.path
    path.write_text(json.dumps({"dataset": {"command": ["no-such-program"]}, "graders": [EXACT]}))
    with pytest.raises(ConfigError, match="eval.yaml: dataset: its command 'no-such-program' is not on PATH"):
        open_dataset(load_evaluation(path), tmp_path / "out", {})
