"""The view models, and the HTML that is made of them, also of hostile text."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quintain.contracts.agents import AgentStep, StepsCut
from quintain.contracts.invoke import ChatMessage, InvokeRequest
from quintain.web import visible
from quintain_cli.__main__ import app
from quintain_runner.results.labels import Note, NoteKey, append_note, latest_notes, read_notes
from quintain_runner.results.row import Answer, JudgeUsed, RowCase
from quintain_view.case_page import MAX_ID_CHARACTERS, CaseOrigin, ShownVerdict, case_page
from quintain_view.filters import TrialFilter
from quintain_view.html_report import write_html_report
from quintain_view.index_writer import update_index
from quintain_view.reading import read_case_page, read_run_page
from quintain_view.text import shown, shown_message, shown_messages, word_difference
from quintain_view.timeline import AnswerTimeline
from support.evaluations import EXACT, EvaluationFolder, Json, cases, write_evaluation
from support.fake_client import FakeClient
from support.html_reports import assert_harmless, cards_of
from support.results_folder import HOSTILE, errored_row, graded_row, hostile_row, tool_step, write_results


def report_of(folder: Path, *runs: str) -> str:
    """The file of these runs in the folder; by default that of ``run``."""
    write_html_report(folder / "report.html", [folder / run for run in runs or ("run",)])
    return (folder / "report.html").read_text()


def test_hostile_text_makes_no_tag_no_attribute_and_no_control_character(tmp_path: Path) -> None:
    write_results(tmp_path / "run", [hostile_row(), errored_row(f"2{HOSTILE}")])
    html = report_of(tmp_path)
    assert len(cards_of(html)) == 2
    html += "".join(cards_of(html).values())
    assert_harmless(html)
    addresses = re.findall(r' (?:href|src|action)="([^"]*)', html)
    assert [address for address in addresses if not address.startswith(("#", "data:,"))] == []
    assert "⟦U+202E⟧right" in html


def test_a_report_has_every_case_with_its_neighbours_and_all_steps_that_a_page_shows(tmp_path: Path) -> None:
    answer = Answer(request_id="r", steps=[tool_step({"q": "tides"}, "12:40")] * 201)
    rows = [graded_row(f"case-{number}", (number % 10) / 10) for number in range(120)]
    write_results(tmp_path / "run", [*rows[:-1], rows[-1].with_fields(answer=answer)])
    html = report_of(tmp_path)
    cards = cards_of(html)
    assert list(cards) == [f"run-1-case-{number}" for number in range(1, 121)]
    assert {*re.findall('href="#(run-1-case-[^"]*)"', html)} == {*cards}
    for rel, place in (("prev", 15), ("next", 17)):
        assert f'<a rel="{rel}" href="#run-1-case-{place}">' in cards["run-1-case-16"]
    for which, place in (("previous", 5), ("next", 11)):
        assert f'<a data-failure="{which}" href="#run-1-case-{place}">' in cards["run-1-case-6"]
    last = cards["run-1-case-120"]
    assert ["<bdi>case-119</bdi>" in last, "200 of 201 steps" in last] == [True, True]
    assert last.count('<li class="step tool">') == 200


@pytest.mark.parametrize(("name", "limit", "kept"), [("MAX_CASES", 3, 3), ("MAX_BYTES", 1_000, 2)])
def test_of_a_run_that_is_too_large_the_failures_come_first_and_the_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: int, kept: int
) -> None:
    monkeypatch.setattr(f"quintain_view.html_report.{name}", limit)
    write_results(tmp_path / "run", [graded_row(f"case-{number}", float(number != 7)) for number in range(9)])
    html = report_of(tmp_path)
    cards = list(cards_of(html).values())
    assert len(cards) == kept
    assert "<bdi>case-7</bdi>" in cards[-1]
    assert f"{kept} of 9 cases" in html


def test_a_report_has_two_megabytes_for_three_hundred_cases_of_nine_answers(tmp_path: Path) -> None:
    chance = random.Random(7)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 11))) for _ in range(20_000)]
    weights = [*itertools.accumulate(1 / (number + 3) for number in range(len(words)))]

    def phrases(count: int) -> list[str]:
        return [" ".join(chance.choices(words, cum_weights=weights, k=15)) for _ in range(count)]

    rows = []
    for number in range(30):
        # As answers to one question do, these share half of their phrases.
        shared = phrases(10)
        for target, repeat in itertools.product("abc", (1, 2, 3)):
            output = "\n\n".join(chance.sample([*shared, *phrases(10)], 10))
            rows.append(graded_row(f"case-{number}", chance.random(), target=target, repeat=repeat, output=output))
    write_results(tmp_path / "run", rows, targets="abc", repeats=3)
    assert len(report_of(tmp_path)) < 2_000_000 * 30 / 300


def test_the_file_of_one_case_has_no_other_and_only_its_user_reads_it(tmp_path: Path) -> None:
    write_results(tmp_path / "run", [graded_row("one", 1.0), graded_row("two", 0.0)])
    path = tmp_path / "report.html"
    said = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--html", str(path), "--case", "two"])
    assert said.exit_code == 0
    assert path.stat().st_mode & 0o077 == 0
    assert [part in path.read_text() for part in ("<bdi>two</bdi></h2>", "<bdi>one</bdi></h2>")] == [True, False]
    for words in (["--case", "two"], ["--html", str(path), "--case", "three"]):
        assert CliRunner().invoke(app, ["report", str(tmp_path / "run"), *words]).exit_code == 2


def test_a_report_of_a_few_cases_has_all_and_no_network(tmp_path: Path) -> None:
    write_results(tmp_path / "run", [graded_row("1", 1.0), graded_row("2", 0.0), errored_row("3")])
    key = NoteKey.of(graded_row("2", 0.0))
    append_note(tmp_path / "run", Note(**key._asdict(), passed=True, text="it is right"))
    html = report_of(tmp_path, "run", "run")
    assert len(cards_of(html)) == 6
    html += "".join(cards_of(html).values())
    assert html.count("it is right") == 2
    assert re.findall(r"(?:src|href)=\"(?!#|data:,)", html) == []
    ids = re.findall(r' id="([^"]*)"', html)
    assert len(ids) == len(set(ids))


def page_with_steps(*steps: AgentStep, cut: StepsCut | None = None) -> AnswerTimeline:
    row = graded_row("1", 1.0)
    answer = Answer(request_id="r", steps=list(steps), steps_cut=cut)
    page = case_page("1", [row.model_copy(update={"answer": answer})], CaseOrigin("eval.yaml", "runs/one"))
    return page.answers[0].timeline


def test_what_an_agent_did_is_a_timeline_of_its_answer() -> None:
    parts = [{"type": "reasoning", "content": "Hm."}, {"type": "tool_call", "name": "search"}]
    said = [{"role": "assistant", "parts": parts}]
    chat = AgentStep(operation="chat", model="m-1", messages=said, input_tokens=1200, output_tokens=5)
    failed = AgentStep(operation="execute_tool", tool="delete", arguments={"id": 1}, error_type="Refused")
    timeline = page_with_steps(chat, tool_step({"q": "tides"}, "12:40"), failed)
    assert timeline.title == "Steps: 3, 2 of them calls of tools"
    first, called, refused = timeline.steps
    assert (first.kind, first.title, first.type) == ("chat", "m-1", "chat · 1,200 in, 5 out")
    assert [(text.name, text.text.text) for text in first.texts or ()] == [
        ("assistant · reasoning", "Hm."),
        ("assistant · tool_call", '{\n  "name": "search"\n}'),
    ]
    assert (called.kind, called.at, called.type) == ("tool", "5 ms", "execute_tool · 1.50 s")
    assert [text.text.text for text in (called.texts or []) + called.reply.texts] == ['{\n  "q": "tides"\n}', "12:40"]
    assert (refused.reply.title, refused.reply.is_error) == ("Refused", True)
    assert timeline.notes == []


def test_a_timeline_says_what_was_cut_and_where_and_what_the_page_leaves_out() -> None:
    timeline = page_with_steps(*[tool_step(1, 2)] * 3, cut=StepsCut(kept=2, steps=1234, characters=5678))
    assert [step.kind for step in timeline.steps] == ["tool", "tool", "gap", "tool"]
    assert "1,234" in timeline.steps[2].title
    assert all(number in timeline.notes[0] for number in ("1,234", "5,678"))
    long = page_with_steps(*[tool_step(1, 2)] * 300)
    assert len(long.steps) == 200
    assert "200 of 300" in long.notes[0]


@pytest.mark.parametrize(
    ("expected", "answer", "kinds"),
    [
        ("the red fox", "the brown fox", ["same", "missing", "added", "same"]),
        *(("same", "same", []), ("Ottawa", "Toronto", []), ("", "anything", [])),
        ("word " * 1_000, "word " * 1_001, []),
    ],
)
def test_the_difference_of_two_texts_is_by_words(expected: str, answer: str, kinds: list[str]) -> None:
    spans = word_difference(expected, answer)
    assert [span.kind for span in spans] == kinds
    if spans:
        assert "".join(span.text for span in spans if span.kind != "added") == expected
        assert "".join(span.text for span in spans if span.kind != "missing") == answer


def test_a_row_without_contents_one_in_error_and_one_with_endless_texts_have_pages() -> None:
    (answer,) = case_page("1", [graded_row("1", 0.0).without_content()], CaseOrigin("e", "f")).answers
    assert (answer.row.content_omitted, answer.curl) == (True, None)
    (answer,) = case_page("1", [errored_row("1")], CaseOrigin("e", "runs/x")).answers
    assert "--output runs/x --" in answer.ask_again
    assert len(case_page("x" * 50_000, [graded_row("x", 1.0)], CaseOrigin()).case_id) == MAX_ID_CHARACTERS
    assert shown("x" * 5_000_000).cut == 5_000_000 - len(shown("x" * 5_000_000).text)
    assert visible("a\r\nb\tc\x00\ud800") == "a\nb\tc⟦U+0000⟧⟦U+D800⟧"


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("data:image/png;base64,AAAA", "image"),
        ("data:image/svg+xml;base64,AAAA", "other"),
        ("https://example.org/a.png", "other"),
        ("data:text/html;base64,AAAA", "other"),
        ("javascript:alert(1)", "other"),
    ],
)
def test_only_pictures_within_the_message_are_shown(address: str, kind: str) -> None:
    message = ChatMessage(role="user", content=[{"type": "image_url", "image_url": {"url": address}}])
    assert [part.kind for part in shown_message(message).parts] == [kind]


def test_a_copied_command_has_the_variable_and_no_control_character() -> None:
    row = graded_row("1", 1.0).model_copy(update={"case": RowCase(question=f"it's {HOSTILE}")})
    (answer,) = case_page("1", [row], CaseOrigin("eval.yaml", "runs/eval")).answers
    assert "$QUINTAIN_SESSION_TOKEN" in answer.curl
    assert answer.curl.isascii()
    assert answer.curl.isprintable()


def test_the_latest_note_of_an_answer_counts_and_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    for passed in (True, False, None):
        append_note(tmp_path, Note(case_id="1", column="bot", repeat=1, answer="a", passed=passed, text=HOSTILE))
    with (tmp_path / "notes.jsonl").open("a") as file:
        file.write('{"caseId": "2", "col')
    assert (tmp_path / "notes.jsonl").stat().st_mode & 0o777 == 0o600
    latest = latest_notes(read_notes(tmp_path))
    assert {key: (note.passed, note.text) for key, note in latest.items()} == {
        NoteKey("1", "bot", 1, "a"): (None, HOSTILE)
    }


def test_who_judged_and_what_it_was_not_shown_is_beside_its_verdict(tmp_path: Path) -> None:
    row = graded_row("1", 1.0)
    used = JudgeUsed(target="bot", model="m-1", settings={"seed": 7}, ignored=["top_k"])
    graders = {name: one.with_fields(left_out={"output": 12_345}, judge=used) for name, one in row.graders.items()}
    (verdict,) = case_page("1", [row.with_fields(graders=graders)], CaseOrigin("e", "f")).answers[0].verdicts
    assert verdict.judge == "bot (m-1, seed 7, without top_k)"
    own, cut = verdict.notes
    assert "itself" in own
    assert "12,345 characters of output" in cut
    write_results(tmp_path / "run", [row.with_fields(graders=graders)])
    assert "12,345 characters of output" in report_of(tmp_path)


def test_a_run_whose_results_were_cut_says_how_many_rows_are_missing(tmp_path: Path) -> None:
    write_results(tmp_path / "run", [graded_row(str(number), 1.0) for number in range(4)])
    results = tmp_path / "run" / "results.jsonl"
    whole = read_run_page(tmp_path / "run", TrialFilter(), update_index(tmp_path / "run"))
    results.write_bytes(b"".join(results.read_bytes().splitlines(keepends=True)[:1]))
    cut = read_run_page(tmp_path / "run", TrialFilter(), update_index(tmp_path / "run"))
    assert whole.wrong == []
    assert [text.split()[0] for text, _ in cut.wrong] == ["3"]


# The page of a case whose answer judges of its own have judged: what each was sent is beside its verdict.


JURY: Json = {"builtin": "llm-judge", "judge_targets": ["sage", "owl"], "instructions": "Is {{ it }} short?"}
RUBRIC: Json = {"builtin": "llm-judge", "judge_target": "sage", "rubric": [{"id": "kind", "text": "It is kind."}]}


async def answer(request: InvokeRequest) -> str:
    criteria = {"kind": {"score": 1}} if "is kind" in (request.system_prompt or "") else {}
    return "yes" if request.target == "bot" else json.dumps({"pass": True, "criteria": criteria})


def judgements(verdicts: list[ShownVerdict]) -> Iterator[ShownVerdict]:
    """The verdicts that one judge gave, also in juries and lists."""
    for verdict in verdicts:
        yield from [verdict] if verdict.judge else judgements(verdict.votes)


async def test_what_a_cases_own_judges_were_sent_is_shown_also_of_those_in_lists(tmp_path: Path) -> None:
    client = FakeClient(answer, targets=("bot", "sage", "owl"))
    folder, rows = EvaluationFolder(tmp_path, client), cases(2)
    rows[0]["graders"] = [JURY, {**RUBRIC, "not": True}, {"any": [{"all": [RUBRIC]}, {"builtin": "exact"}]}]
    write_evaluation(tmp_path, rows, [EXACT, {**JURY, "name": "shared", "instructions": "Is it short?"}])
    await folder.run()
    update_index(folder.output)
    replies = {json.dumps({"pass": True, "criteria": one}) for one in ({}, {"kind": {"score": 1}})}
    for case_id, count in (("case-0", 6), ("case-1", 2)):
        page, _ = read_case_page(folder.output, case_id)
        assert {verdict.grader.judge.reply for verdict in judgements(page.answers[0].verdicts)} <= replies
        shown = [verdict.prompt() for verdict in judgements(page.answers[0].verdicts)]
        sent = [one for one in client.requests if one.target != "bot" and one.eval_case_id == case_id]
        assert len(shown) == len(sent) == count
        for request in sent:
            assert shown_messages(request.conversation()) in shown
    # Of a judge that nothing is recorded of nobody knows what it was sent.
    rows = folder.rows_by_case()
    page = case_page("case-1", [rows["case-1"]], CaseOrigin("e", "f"))
    assert [verdict.prompt() for verdict in judgements(page.answers[0].verdicts)] == [[], []]
    write_html_report(tmp_path / "report.html", [folder.output])
    assert all("criteria" in card for card in cards_of((tmp_path / "report.html").read_text()).values())
