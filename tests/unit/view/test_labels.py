"""Labels: of which answer one is, what the queues show, from which the agreement is computed, and their files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quintain.contracts.agents import AgentStep
from quintain.errors import ConfigError
from quintain_runner.plan.labeled_answers import read_label_file
from quintain_runner.results.answer import Answer
from quintain_runner.results.labels import FILE_NAME, Chosen, Note, NoteKey, answer_sha256, append_note, read_notes
from quintain_runner.results.row import GraderRow, JudgeUsed, Row, RowCase
from quintain_view.html_report import write_html_report
from quintain_view.labels import agreement_tables, next_in_queue
from support.results_folder import errored_row, graded_row, write_results
from support.view_client import pages_of

REASON = "what the judge says"


def judged_row(case_id: str, *scores: float, output: str | None = None) -> Row:
    """An answer with a verdict of each of these scores."""
    used = JudgeUsed(target="sage", reply=f'{{"reason": "{REASON}"}}')
    graders = {
        f"judge-{n}": GraderRow(score=one, passed=one >= 0.5, reason=REASON, judge=used) for n, one in enumerate(scores)
    }
    row = graded_row(case_id, sum(scores) / len(scores), output=output or f"the answer of {case_id}")
    return row.with_fields(graders=graders, case=RowCase(question=f"the question of {case_id}"))


def label(folder: Path, row: Row, passed: bool | None, chosen: Chosen = Chosen.RANDOM, *, shown: bool = False) -> None:
    append_note(folder, Note(**NoteKey.of(row)._asdict(), passed=passed, chosen=chosen, verdicts_shown=shown))


def indexed(folder: Path, rows: list[Row]) -> Path:
    write_results(folder, rows)
    write_html_report(folder.parent / "report.html", [folder])
    return folder


def fields_of(page: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))


def test_a_label_is_of_what_was_said_and_done() -> None:
    said = graded_row("1", 1.0, output="Done.")
    called = [
        said.with_fields(answer=Answer(steps=[AgentStep(operation="execute_tool", tool=tool)]))
        for tool in ("read", "delete")
    ]
    assert len({answer_sha256(row) for row in (said, *called)}) == 3
    assert answer_sha256(said.with_fields(answer=Answer(request_id="another"))) == answer_sha256(said)
    assert answer_sha256(errored_row("1")) is None


def test_an_answer_that_was_asked_again_has_no_label(tmp_path: Path) -> None:
    before, after = judged_row("1", 1.0, output="Paris"), judged_row("1", 1.0, output="Lyon")
    folder = indexed(tmp_path / "run", [after, judged_row("2", 0.0)])
    label(folder, before, True)
    (table,) = agreement_tables(folder)
    assert table.rows == [("1", "1")]
    write_html_report(tmp_path / "report.html", [folder])
    assert "Label:" not in (tmp_path / "report.html").read_text()


def test_agreement_is_computed_from_blind_labels_of_the_random_queue(tmp_path: Path) -> None:
    rows = [judged_row(str(number), float(number % 2)) for number in range(8)]
    folder = indexed(tmp_path / "run", rows)
    for row in rows[:4]:
        label(folder, row, row.passed)
    # Changed when the verdict was known: it counts as it was given first.
    label(folder, rows[0], True, shown=True)
    label(folder, rows[4], True, shown=True)
    label(folder, rows[5], False, Chosen.DISPUTED)
    label(folder, rows[6], True, Chosen.PICKED, shown=True)
    label(folder, rows[7], True)
    label(folder, rows[7], None, shown=True)
    at_random, others = agreement_tables(folder)
    assert [cells[:4] for cells in at_random.rows] == [("judge-0", "4", "4", "1.00 (0.51 to 1.00)")]
    assert sorted(cells[2:] for cells in others.rows) == [("1", "0"), ("1", "0"), ("1", "0")]


def test_the_judges_of_a_jury_have_their_own_agreement_and_ties_and_comparisons_are_no_verdicts(tmp_path: Path) -> None:
    votes = {"a": GraderRow(score=1.0, passed=True), "b": GraderRow(score=0.0, passed=False)}
    tied = GraderRow(score=0.5, passed=False, tied=True, votes=votes)
    compared = GraderRow(score=1.0, passed=True, comparisons=[])
    row = judged_row("1", 1.0).with_fields(graders={"jury": tied, "pairs": compared})
    folder = indexed(tmp_path / "run", [row])
    label(folder, row, True)
    (table,) = agreement_tables(folder)
    assert [(cells[0], cells[3][:4]) for cells in table.rows] == [("jury · a", "1.00"), ("jury · b", "0.00")]


def test_the_random_order_depends_on_nothing_that_graders_said(tmp_path: Path) -> None:
    def order(folder: Path) -> list[str]:
        found: list[str] = []
        while (queued := next_in_queue(folder, Chosen.RANDOM)) is not None:
            assert (queued.row.graders, queued.row.score) == ({}, None)
            assert queued.labeled == len(found)
            found.append(queued.row.case_id)
            label(folder, queued.row, True)
        return found

    passed = order(indexed(tmp_path / "a", [judged_row(str(number), 1.0) for number in range(20)]))
    failed = order(indexed(tmp_path / "b", [judged_row(str(number), 0.0) for number in range(20)]))
    assert passed == failed != sorted(passed, key=int)
    assert sorted(passed, key=int) == [str(number) for number in range(20)]


def test_disputed_answers_come_first_and_then_scores_near_the_one_that_passes(tmp_path: Path) -> None:
    votes = {name: GraderRow(score=score, passed=score > 0) for name, score in (("a", 0.0), ("b", 0.7), ("c", 0.8))}
    jury = judged_row("voted", 1.0).with_fields(graders={"jury": GraderRow(score=1.0, passed=True, votes=votes)})
    scores = {"sure": (1.0, 1.0), "near": (0.45, 0.45), "nearer": (0.52, 0.52), "split": (1.0, 0.0)}
    rows = [jury, *(judged_row(name, *pair) for name, pair in scores.items())]
    folder = indexed(tmp_path / "run", rows)
    found: list[str] = []
    # One that was labeled elsewhere is not asked for again here.
    label(folder, rows[3], True, Chosen.RANDOM)
    while (queued := next_in_queue(folder, Chosen.DISPUTED)) is not None:
        found.append(queued.row.case_id)
        label(folder, queued.row, None, Chosen.DISPUTED)
    assert found == ["split", "voted", "near"]


async def test_no_verdict_is_in_the_page_until_the_label_is_given(tmp_path: Path) -> None:
    rows = [judged_row(str(number), float(number % 2), 0.5) for number in range(6)]
    folder = indexed(tmp_path / "runs" / "one", rows)
    async with pages_of(tmp_path / "runs") as client:
        for queue in ("random", "disputed"):
            page = (await client.get("/run/one/label", params={"queue": queue})).text
            assert "the answer of" in page
            assert REASON not in page
            assert "judge-0" not in page
            assert 'class="mark' not in page
        fields = fields_of((await client.get("/run/one/label")).text)
        saved = await client.post("/run/one/notes", data={**fields, "pass": "false", "text": "no"})
        assert saved.status_code == 303
        following = (await client.get(saved.headers["location"])).text
        assert REASON in following
        assert fields_of(following)["id"] != fields["id"]
    (note,) = read_notes(folder)
    assert (note.case_id, note.passed, note.chosen, note.verdicts_shown) == (fields["id"], False, Chosen.RANDOM, False)


async def test_a_label_says_whether_verdicts_were_shown_before(tmp_path: Path) -> None:
    folder = indexed(tmp_path / "runs" / "one", [judged_row(str(number), 1.0) for number in range(4)])
    async with pages_of(tmp_path / "runs") as client:
        fields = fields_of((await client.get("/run/one/label")).text)
        await client.get("/run/one/case", params={"id": fields["id"]})
        await client.post("/run/one/notes", data={**fields, "pass": "true"})
    # A server that was started later knows it of what has a label.
    async with pages_of(tmp_path / "runs") as client:
        await client.post("/run/one/notes", data={**fields, "pass": "false"})
        fields = fields_of((await client.get("/run/one/label")).text)
        await client.post("/run/one/notes", data={**fields, "pass": "true"})
        await client.post("/run/one/notes", data={"id": fields["id"], "trial": fields["trial"], "pass": "true"})
    assert [(note.chosen, note.verdicts_shown) for note in read_notes(folder)] == [
        (Chosen.RANDOM, True),
        (Chosen.RANDOM, True),
        (Chosen.RANDOM, False),
        (Chosen.PICKED, True),
    ]


async def test_the_verdicts_on_one_answer_do_not_make_a_label_of_another_less_blind(tmp_path: Path) -> None:
    row = judged_row("1", 1.0)
    folder = tmp_path / "runs" / "one"
    write_results(folder, [row, row.with_fields(target="other")], targets=("bot", "other"))
    async with pages_of(tmp_path / "runs") as client:
        await client.get("/run/one")
        address = "/run/one/label"
        for _ in range(2):
            fields = fields_of((await client.get(address)).text)
            address = (await client.post("/run/one/notes", data={**fields, "pass": "true"})).headers["location"]
        assert fields_of((await client.get(address)).text) == {}
    assert [note.verdicts_shown for note in read_notes(folder)] == [False, False]


def test_a_label_of_a_file_keeps_its_text_and_a_cr_alone_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "gold.jsonl"
    path.write_bytes('\ufeff{"id": 1,\r"output": "a\u2028b\x85c", "pass": true}\r\n\r\n'.encode())
    (read,) = read_label_file(path)
    assert (read.case_id, read.output, read.passed) == ("1", "a\u2028b\x85c", True)
    (tmp_path / FILE_NAME).write_bytes(b'{"caseId": "1",\r"column": "a", "repeat": 1, "pass": true}\r\n')
    assert [note.case_id for note in read_notes(tmp_path)] == ["1"]


@pytest.mark.parametrize("line", [b'{"id": 1, "output": "\\ud83d", "pass": true}', b"\xff", b"{}\0", b"{} \r {}"])
def test_what_is_no_label_is_told_with_its_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "gold.jsonl"
    path.write_bytes(b'{"id": 1, "output": "", "pass": true}\n' + line)
    with pytest.raises(ConfigError, match=r"gold\.jsonl: line 2: it "):
        read_label_file(path)
