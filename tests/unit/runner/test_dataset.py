"""The dataset, a file or what a program prints: rows as cases, a part of them, and every mistake with its line."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.plan.cases import parse_case
from quintain_runner.plan.dataset import CaseSource, DatasetStats, check_dataset, open_dataset, read_cases
from quintain_runner.spec.evaluation import DatasetSpec, Evaluation, load_evaluation
from support.evaluations import EXACT

GOOD = '{"id": "1", "question": "q"}'


def write(tmp_path: Path, *lines: str | bytes) -> Path:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines))
    return path


def check(path: Path, **choice: object) -> DatasetStats:
    spec = DatasetSpec.model_validate({"file": path.name, **choice})
    return check_dataset(spec, CaseSource(path=path, format=spec.case_format, fields=spec.fields))


def selected_ids(path: Path, **choice: object) -> list[str]:
    """The ids of the cases that count, which are as many as the check says."""
    facts = check(path, **choice)
    ids = [case.id for case in read_cases(facts.source)]
    assert len(ids) == facts.cases
    return ids


def dataset_errors(path: Path, **choice: object) -> list[str]:
    with pytest.raises(ConfigError) as error:
        check(path, **choice)
    return [line.removeprefix(f"{path}: ") for line in error.value.message.splitlines()]


def test_a_row_has_its_own_fields_and_the_others_are_metadata() -> None:
    case = parse_case({"id": "1", "question": "q", "system_prompt": "s", "expected": ["a"], "level": {"n": 3}})
    assert case == Case(id="1", question="q", system_prompt="s", expected=["a"], metadata={"level": {"n": 3}})
    messages = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": [{"type": "text", "text": "last"}]},
    ]
    case = parse_case({"id": 7, "messages": messages})
    assert [message.role for message in case.messages] == ["user", "assistant", "user"]
    assert (case.id, case.question_text) == ("7", "last")


def test_cases_are_streamed_in_order_and_blank_lines_and_a_byte_order_mark_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbf" + GOOD.encode(), "", '{"id": "2", "question": "r"}', "   ")
    assert selected_ids(path) == ["1", "2"]
    facts = check(path)
    assert (facts.cases, facts.input_characters) == (2, 2)
    assert facts.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "not json", '["a list"]', '{"question": "no id"}', '{"id": "5"}', GOOD)
    told = dataset_errors(path)
    assert [sentence.split(":")[0] for sentence in told] == ["line 2", "line 3", "line 4", "line 5", "line 6"]
    assert "it is not JSON (Expecting value, column 1)" in told[0]
    assert "not an object" in told[1]
    assert "it has no id" in told[2]
    assert "give one of question" in told[3]
    assert "the id '1' is used before" in told[4]
    told = dataset_errors(write(tmp_path, *["nonsense"] * 50))
    assert (len(told), told[-1]) == (21, "and 30 more")
    assert "no cases" in dataset_errors(write(tmp_path, ""))[0]
    assert "relative to the evaluation file" in dataset_errors(tmp_path / "absent.jsonl")[0]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b'{"id": true, "question": "q"}', "no id"),
        (b'{"id": "", "question": "q"}', "no id"),
        (b'{"id": "1", "question": 3}', "question: not a text"),
        (b'{"id": "1", "question": ""}', "question: String should have at least 1 character"),
        (b'{"id": "1", "question": "q", "messages": []}', "give one of question"),
        (b'{"id": "1", "messages": [{"role": "robot", "content": "q"}]}', "messages[0].role"),
        (b'{"id": "1", "messages": ["q"]}', "messages[0]"),
        (b'{"id": "1", "question": "q", "expected": NaN}', "NaN"),
        (b'{"id": "1", "question": "q", "expected": 1e999}', "1e999 is too large"),
        (b'{"id": "1", "question": "\xff"}', "not UTF-8"),
        (b'{"id": "1", "question": "\\ud800"}', "question"),
        (b'{"id": "1", "question": "q", "level": ["\\ud83d"]}', "ud83d is half of a surrogate pair"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_line_that_is_no_case_is_told_with_the_mend(tmp_path: Path, line: bytes, sentence: str) -> None:
    (told,) = dataset_errors(write(tmp_path, line))
    assert told.startswith("line 1: ")
    assert sentence in told


def test_streaming_stops_at_a_line_that_went_bad_since_the_check(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "nonsense")
    stream = read_cases(CaseSource(path=path))
    assert next(stream).id == "1"
    with pytest.raises(ConfigError, match="line 2"):
        next(stream)


def write_numbered(tmp_path: Path, count: int, **fields: list[object]) -> Path:
    """So many cases; each of these fields goes through its values again and again."""
    rows = (
        {"id": str(n), "question": f"q{n}", **{name: values[n % len(values)] for name, values in fields.items()}}
        for n in range(count)
    )
    return write(tmp_path, *map(json.dumps, rows))


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ({"lang": "de"}, ["1", "5"]),
        ({"lang": ["de", "fr"]}, ["1", "2", "5", "6"]),
        *(({"lang": "de", "id": "5"}, ["5"]), ({"level": 1}, ["1", "3", "5", "7"]), ({"level": "1"}, [])),
        ({"level": True}, []),
        ({"hard": True}, ["0", "2", "4", "6"]),
        ({"deep.at": "x"}, ["0", "3", "6"]),
        ({"deep.at": None}, ["2", "5"]),
        ({"tags": "b"}, ["1", "3", "5", "7"]),
        ({"written": 7}, ["0", "2", "4", "6"]),
        ({"nothing": "x"}, []),
    ],
)
def test_where_selects_rows_by_their_fields(tmp_path: Path, where: dict[str, object], ids: list[str]) -> None:
    fields = {"lang": ["en", "de", "fr", "es"], "level": [0, 1], "hard": [True, False], "written": ["7", "8"]}
    deep: list[object] = [{"at": "x"}, {"at": 1}, {}]
    path = write_numbered(tmp_path, 8, **fields, deep=deep, tags=[["a"], ["a", "b"]])
    if ids:
        assert selected_ids(path, where=where) == ids
    else:
        assert "where selects none of its 8 rows; check" in dataset_errors(path, where=where)[0]


def test_a_sample_is_the_same_each_time_keeps_the_order_and_is_another_one_with_another_seed(tmp_path: Path) -> None:
    path = write_numbered(tmp_path, 1000)
    first = selected_ids(path, sample=100)
    assert len(first) == 100
    assert first == sorted(first, key=int)
    assert selected_ids(path, sample=100) == first
    assert selected_ids(path, sample=100, seed=1) != first
    assert set(selected_ids(path, sample=50)) < set(first)
    # No part of the dataset is preferred.
    assert 25 < len([one for one in first if int(one) < 500]) < 75
    for sample in (1000, 1001):
        assert len(selected_ids(path, sample=sample)) == 1000
    choices: list[dict[str, object]] = [{}, {"limit": 5}, {"sample": 5}, {"sample": 5, "seed": 1}]
    assert len({check(path, **choice).sha256 for choice in choices}) == 4, "another choice is another dataset"


def test_limit_takes_the_first_of_the_sample_of_what_where_selects(tmp_path: Path) -> None:
    path = write_numbered(tmp_path, 100, level=[0, 1])
    sample = selected_ids(path, where={"level": 1}, sample=20)
    assert all(int(one) % 2 for one in sample)
    assert selected_ids(path, where={"level": 1}, sample=20, limit=5) == sample[:5]
    assert selected_ids(path, limit=3) == ["0", "1", "2"]
    assert selected_ids(path, limit=3, where={"level": 1}) == ["1", "3", "5"]
    # Nothing after the limit is read.
    path = write(tmp_path, GOOD, '{"id": "2", "question": "q", "system_prompt": "be", "expected": "yes"}', "nonsense")
    facts = check(path, limit=2)
    assert (facts.cases, facts.input_characters, facts.expected_characters) == (2, 4, 3)
    assert facts.sha256 == check(write(tmp_path, *path.read_bytes().splitlines()[:2]), limit=2).sha256


def write_csv(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cases.csv"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_a_csv_file_has_a_header_row_and_its_other_columns_are_metadata(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path, '\ufeffid,question,expected,level\r\n1,"Capital, of ""France""?",Paris,3\r\n\r\n2,"two\nlines",,\r\n'
    )
    assert list(read_cases(check(path).source)) == [
        Case(id="1", question='Capital, of "France"?', expected="Paris", metadata={"level": "3"}),
        Case(id="2", question="two\nlines"),
    ]
    assert selected_ids(path, where={"level": 3}) == ["1"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("question\nq\n", "line 1: the header row names no id; its columns are question: add one, or rename one"),
        *(
            (
                f"id{mark}question\n",
                f"line 1: the header row names one column, {f'id{mark}question'!r}; separate the cells by commas",
            )
            for mark in ";\t"
        ),
        ("id,question\n,q\n", "line 2: it has no id"),
        ("id,question\n1,\n", "line 2: give one of question"),
        ("id,question\n1,q\n1,r\n", "line 3: the id '1' is used before"),
        ('id,question\n1,"q\n', "line 2: it is not CSV (unexpected end of data"),
        *((text, "the dataset has no cases") for text in ("id,question\n", "")),
    ],
)
def test_what_is_wrong_in_a_csv_file_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    assert dataset_errors(write_csv(tmp_path, text))[0].startswith(told)


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
    given = {"command": [sys.executable, "cases.py"], **dataset}
    path.write_text(json.dumps({"dataset": given, "graders": [EXACT]}))
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
    assert open_dataset(asked, kept, {}) == facts
    # Another choice runs it no second time.
    fewer = open_dataset(evaluation(tmp_path, limit=2), kept, {})
    assert [case.id for case in read_cases(fewer.source)] == ["1-0", "1-1"]
    assert (tmp_path / "runs.txt").read_text() == "x"
    asked = evaluation(tmp_path, "print('id,question\\n1,q\\n2,r')", format="csv")
    facts = open_dataset(asked, tmp_path / "csv", {})
    assert [case.question for case in read_cases(facts.source)] == ["q", "r"]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import sys; print('{}'); sys.exit('no database')", r"its command failed, exit code 1: no database"),
        ("raise SystemExit(3)", r"its command failed, exit code 3, and it wrote nothing on stderr"),
        ("print('nonsense')", "line 1: it is not JSON"),
        ("", "the dataset has no cases"),
    ],
)
def test_a_program_that_fails_is_told_and_no_half_dataset_is_kept(tmp_path: Path, source: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        open_dataset(evaluation(tmp_path, source), tmp_path / "out", {})
    assert list((tmp_path / "out").iterdir()) == []
    missing = evaluation(tmp_path, command=["no-such-program"])
    with pytest.raises(ConfigError, match="eval.yaml: dataset: its command 'no-such-program' is not on PATH"):
        open_dataset(missing, tmp_path / "out", {})


OTHER_NAMES = {"question": "problem", "expected": "answer"}
ROWS = {
    "jsonl": '{"problem": "2+2?", "answer": "4", "level": "1"}\n{"problem": "3+3?", "answer": "6", "level": "1"}\n',
    "csv": "problem,answer,level\n2+2?,4,1\n3+3?,6,1\n",
    "yaml": "- {problem: '2+2?', answer: '4', level: '1'}\n- {problem: '3+3?', answer: '6', level: '1'}\n",
}


@pytest.mark.parametrize("form", ROWS)
def test_fields_of_other_names_are_read_as_ours_and_a_row_without_an_id_has_its_hash(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"cases.{form}"
    path.write_text(ROWS[form])
    facts = check(path, fields=OTHER_NAMES, where={"level": "1"})
    cases = list(read_cases(facts.source))
    assert [(case.question, case.expected, case.metadata) for case in cases] == [
        ("2+2?", "4", {"level": "1"}), ("3+3?", "6", {"level": "1"}),
    ]  # fmt: skip
    # The same in every format, and whatever the fields are called.
    assert [case.id for case in cases] == ["dcc46f84384db8bc", "5004858f718ec3ef"]
    assert selected_ids(path, fields={**OTHER_NAMES, "id": "problem"}) == ["2+2?", "3+3?"]
    assert check(path, fields=OTHER_NAMES).sha256 != check(path, fields={**OTHER_NAMES, "id": "problem"}).sha256


def test_a_row_without_what_fields_name_or_with_both_names_is_an_error_by_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, '{"answer": "4", "level": 1}', '{"problem": "p", "question": "q", "answer": "4"}')
    assert dataset_errors(path, fields=OTHER_NAMES) == [
        "line 1: it has no 'problem', which dataset.fields names; it has answer, level",
        "line 2: question: dataset.fields takes it from 'problem', and the row has both; rename one",
    ]
    (twice,) = dataset_errors(write(tmp_path, *['{"problem": "p", "answer": "4"}'] * 2), fields=OTHER_NAMES)
    assert "leave out a row that is there twice" in twice
    table = tmp_path / "cases.csv"
    table.write_text("problem,level\np,1\n")
    (error,) = dataset_errors(table, fields=OTHER_NAMES)
    assert error.startswith("line 1: the header row names no answer; its columns are problem, level")
