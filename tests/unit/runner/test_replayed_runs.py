"""A run made again from its recording: rows, failures, programs and conversations, and what is said where one lacks."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from quintain.contracts.agents import Continuation
from quintain.contracts.api_request import ApiRequest, json_text
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.errors import ConfigError, ProviderFailed
from quintain_runner.engine.recording import RUN_FACT, RecordedRun, open_recording
from quintain_runner.engine.recording_lines import lines_of, read_lines
from quintain_runner.engine.replay import open_replay
from quintain_runner.engine.run import RunListener, run_evaluation
from quintain_runner.plan.address import address_of
from quintain_runner.plan.trial_selection import SelectionOptions
from quintain_runner.report.summary import RunSummary
from quintain_runner.results.answer_store import AnswerStore, AskingState, StoredAnswer
from quintain_runner.results.row import Row
from support.evaluations import EvaluationFolder, Json, write_evaluation, write_script
from support.fake_client import INFO, FakeClient

GRADERS: list[Json] = [
    {"name": "judged", "builtin": "llm-judge", "judge_target": "judge", "instructions": "Is it so?"},
    {"name": "arena", "builtin": "pairwise", "against": "all", "judge_target": "judge"},
]


class Provider(FakeClient):
    """Two targets, of which one fails a case, and a judge; conversations are kept by their targets."""

    def __init__(self) -> None:
        super().__init__(self.reply, targets=("alpha", "beta", "judge"))

    async def reply(self, request: InvokeRequest) -> str:
        if request.target == "judge":
            is_pair = (request.grader or "") == "arena"
            return json.dumps({"better": "first", "reason": "r"} if is_pair else {"pass": True, "reason": "r"})
        if request.target == "beta" and request.question == "fails":
            raise ProviderFailed("out of order", charged=True)
        return f"{request.target} {len(self.requests)}"

    async def send(self, request: InvokeRequest, **fields: object) -> Result:
        result = await super().send(request, **fields)
        is_kept = request.turn is not None and not request.turn.last
        return result.with_fields(continuation=Continuation(state="s")) if is_kept else result


def evaluation(folder: Path, *, question: str = "q") -> EvaluationFolder:
    folder.mkdir(exist_ok=True)
    rows: list[Json] = [
        {"id": "plain", "question": question, "expected": "e"},
        {"id": "bad", "question": "fails", "expected": "e"},
        {"id": "talk", "question": "q", "turns": ["and?"], "expected": "e"},
    ]
    command = write_script(folder, "grade.py", "import json; print(json.dumps({'score': 0.25, 'reason': 'told'}))")
    program: Json = {"name": "program", "command": command}
    write_evaluation(folder, rows, [*GRADERS, program], targets=["alpha", "beta"], repeats=2)
    return EvaluationFolder(folder, Provider(), targets=("alpha", "beta"))


def rows_of(folder: EvaluationFolder) -> dict[object, Row]:
    return {row.key: row for row in folder.rows()}


async def replayed(folder: EvaluationFolder, recording: Path) -> RunSummary:
    """Run an evaluation from a recording; its client is told nothing."""
    with open_recording(recording) as opened:
        run = folder.settings(recording=opened)
        async with open_replay(run, opened) as (backend, sessions):
            return await run_evaluation(run, backend, sessions, RunListener())


async def test_rows_failures_programs_and_conversations_are_as_they_were(tmp_path: Path) -> None:
    first, again = evaluation(tmp_path / "first"), evaluation(tmp_path / "again")
    summary = await first.run()
    (again.path / "grade.py").unlink()
    told = await replayed(again, first.output)
    assert rows_of(again) == rows_of(first)
    assert replace(told, results=summary.results) == summary
    assert summary.total.in_doubt == 2
    # As lines of JSON it is the same recording.
    copy = tmp_path / "copy.sqlite3"
    with open_recording(first.output) as opened, closing(AnswerStore.open(copy)) as store:
        lines = [line.encode() for line in lines_of(opened)]
        assert read_lines(lines, copy, store) == len(lines) - 2
        # Another editor's line ends, a byte order mark and an empty line change nothing; a cut at any line is named.
        edited = [b"\xef\xbb\xbf" + lines[0] + b"\r\n", b"\r\n", *(line + b"\r\n" for line in lines[1:])]
        assert read_lines(edited, copy, store) == len(lines) - 2
        for cut in range(1, len(lines)):
            with pytest.raises(ConfigError, match="not whole"):
                read_lines(lines[:cut], copy, store)
        copied, original = ([one._replace(reply=b"") for one in each.answers()] for each in (store, opened))
        assert copied == original
    third = evaluation(tmp_path / "third")
    await replayed(third, copy)
    assert rows_of(third) == rows_of(first)


async def test_what_is_not_recorded_is_an_error_of_its_row_alone(tmp_path: Path) -> None:
    first, again = evaluation(tmp_path / "first"), evaluation(tmp_path / "again", question="another")
    await first.run()
    await replayed(again, first.output)
    before, now = rows_of(first), rows_of(again)
    lacking = {key for key, row in now.items() if row.error is not None and row.error.code == "not_recorded"}
    assert {key.case_id for key in lacking} == {"plain"}
    assert len(lacking) == 4
    assert all('question: "q" is asked as "another"' in now[key].error.error for key in lacking)
    assert {key: row for key, row in now.items() if key not in lacking} == {
        key: row for key, row in before.items() if key not in lacking
    }


async def test_a_second_command_and_a_repaired_failure_are_in_the_recording(tmp_path: Path) -> None:
    first, again = evaluation(tmp_path / "first"), evaluation(tmp_path / "again")
    await first.run(selection=SelectionOptions(ids=("plain",)))
    await first.run()
    await replayed(again, first.output)
    assert {key: row.score for key, row in rows_of(again).items()} == {
        key: row.score for key, row in rows_of(first).items()
    }


def test_the_address_of_a_request_in_a_vendors_words_is_found_again(tmp_path: Path) -> None:
    request = ApiRequest("embeddings", json_text({"input": ["é \ud83d\ude00", "a b"]}), target="e", grader="near")
    address = address_of(request, "f", "n")
    answer = StoredAnswer(
        address, 1, "n", "e", "f", request.to_wire(), b'{"a": 1}', AskingState.ANSWERED, answered_at=1
    )
    with closing(AnswerStore.open(tmp_path / "one.sqlite3")) as store:
        store.write([answer], now=0)
        store.write_fact(RUN_FACT, RecordedRun(info=INFO).to_wire().decode())
    copy = tmp_path / "two.sqlite3"
    with open_recording(tmp_path / "one.sqlite3") as opened, closing(AnswerStore.open(copy)) as store:
        read_lines((line.encode() for line in lines_of(opened)), copy, store)
        assert list(store.answers()) == [answer]


@pytest.mark.parametrize(
    ("lines", "said"),
    [([], "it is empty"), ([b"{}"], "line 1"), ([b"no JSON"], "line 1"), ([b'{"version": 2}'], "line 1")],
)
def test_lines_that_are_no_recording_are_named(tmp_path: Path, lines: list[bytes], said: str) -> None:
    path = tmp_path / "lines"
    with closing(AnswerStore.open(tmp_path / "a.sqlite3")) as store, pytest.raises(ConfigError, match=said):
        read_lines(lines, path, store)


def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    AnswerStore.open(tmp_path / "cache.sqlite3").close()
    for path, said in ((tmp_path / "none", "no such file"), (tmp_path / "cache.sqlite3", "a cache is no recording")):
        with pytest.raises(ConfigError, match=said), open_recording(path):
            pass
