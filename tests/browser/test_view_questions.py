"""Nine questions about a run of several targets, graders and repeats: each is answered in two actions from its page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from quintain.contracts.invoke import TokenUsage
from quintain.graders import Case
from quintain_runner.graders.judge_request import build_judge_request, request_hash
from quintain_runner.results.bill import Bill
from quintain_runner.results.row import Answer, GraderRow, JudgeUsed, Row, RowCase, RowStatus
from quintain_runner.spec.asking_graders import JudgeGrader
from support.browser import ViewPage
from support.command_line import CommandLine, command_line
from support.results_folder import errored_row, graded_row, tool_step, write_results

pytestmark = pytest.mark.timeout(600)

TARGETS, REPEATS = ("alpha", "beta", "gamma"), 3

#: 500 words with a heading, a list, a table and code.
LONG_ANSWER = (
    "# Plan\n\n- **first**\n- `second`\n\n|a|b|\n|-|-|\n|1|2|\n\n```\ncode\n```\n\n" + "five words that are said " * 100
)


JUDGE = JudgeGrader(name="judge", builtin="llm-judge", instructions="Is it a good plan?", judge_target="sage")


def some_row(number: int, target: str, repeat: int, *, is_worse: bool) -> Row:
    """Alpha fails every second case, the judge differs on every third; one answer is slow, and one call failed."""
    is_pass = target != "alpha" or (number % 2 == 0 and not is_worse)
    judge = 1.0 if number % 3 == 0 else float(is_pass)
    said = f"The words of the judge on {number}"
    row = graded_row(f"case-{number:02}", (is_pass + judge) / 2, target=target, repeat=repeat, output=LONG_ANSWER)
    row = row.with_fields(
        case=RowCase(question=f"What of {number}?", expected="a plan"),
        output=f"{LONG_ANSWER} needle {number} {repeat}" if number == 7 else row.output,
        answer=Answer(request_id=f"{target}-{number}-{repeat}", steps=[tool_step(1, 2)] * 201 if number == 8 else None),
    )
    case = Case(id=row.case_id, question=f"What of {number}?", expected="a plan")
    request = build_judge_request(JUDGE, JUDGE.instructions or "", case, row.result, target="sage")
    used = JudgeUsed(target="sage", request=request_hash(request), reply=f'{{"score": {judge}, "reason": "{said}"}}')
    graders = {
        "exact": GraderRow(score=float(is_pass), passed=is_pass),
        "judge": GraderRow(score=judge, passed=judge >= 0.5, reason=said, calls=1, judge=used),
    }
    return row.model_copy(
        update={
            "graders": graders,
            "duration_ms": 65_000.0 if (number, target, repeat) == (11, "gamma", 2) else 1_500.0,
        }
    )


def some_rows(*, is_worse: bool) -> list[Row]:
    rows = [
        some_row(number, target, repeat, is_worse=is_worse)
        for number in range(30)
        for target in TARGETS
        for repeat in range(1, REPEATS + 1)
    ]
    return [*rows[:-1], errored_row("broken", target="beta", status=RowStatus.IN_DOUBT)]


def write_run(folder: Path, *, is_worse: bool) -> None:
    graders: list[dict[str, object]] = [{"name": name, "builtin": "exact"} for name in ("exact", "judge")]
    rows = some_rows(is_worse=is_worse)
    write_results(folder, rows, targets=TARGETS, repeats=REPEATS, graders=graders, bill=Bill())
    record = json.loads((folder / "run.json").read_text())
    record["prices"] = {target: {"inputPerMillion": 3.0, "outputPerMillion": 15.0} for target in TARGETS}
    record["startedAt"] = f"2026-01-0{1 + is_worse}T10:00:00.000+00:00"
    record["judges"] = {"judge": JUDGE.model_dump(exclude_defaults=True)}
    (folder / "run.json").write_text(json.dumps(record))
    used = TokenUsage(input=10_000, output=200).model_dump(by_alias=True, exclude_none=True)
    call = {"sessionId": "s", "target": "alpha", "state": "committed", "tokenUsage": used}
    (folder / "calls.jsonl").write_text(json.dumps({**call, "requestId": "alpha-1-1"}) + "\n")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with command_line(tmp_path_factory.mktemp("questions")) as shell:
        write_run(shell.folder / "runs" / "yesterday", is_worse=False)
        write_run(shell.folder / "runs" / "today", is_worse=True)
        yield shell


Action = Callable[[Page], object]


def choose(label: str, value: str) -> Action:
    return lambda page: page.get_by_role("combobox", name=label, exact=True).select_option(label=value)


def follow(name: str) -> Action:
    return lambda page: page.get_by_role("link", name=name, exact=True).first.click()


def unfold(name: str) -> Action:
    return lambda page: page.locator("summary", has_text=name).first.click()


def search(words: str) -> list[Action]:
    return [lambda page: page.locator("#q").fill(words), lambda page: page.keyboard.press("Enter")]


#: The question, what is done from the run's page, and what then is in sight.
QUESTIONS: dict[str, tuple[list[Action], str]] = {
    "fails for A and passes for B": ([choose("alpha", "failed"), choose("beta", "passed")], "30 cases"),
    "graders disagree": ([choose("order", "graders disagree most first")], "disagreement 1.00"),
    "the judge's words": ([follow("What of 1?")], "The words of the judge on 1"),
    "what the judge was sent": ([follow("What of 1?"), unfold("Prompt and reply of judge")], "Is it a good plan?"),
    "cost": ([choose("order", "dearest first")], "cost $0.0002"),
    "slowest, with durations": ([choose("order", "slowest first")], "duration 1.1 min"),
    "against yesterday, with a p": ([follow("Against the run before")], "< 0.001"),
    "answers that say X": (search('"needle 7"'), "1 case"),
    "why an error, and was it charged": (
        [follow("1 in doubt"), follow("broken")],
        "in doubt: without an answer, and may have been charged",
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_in_two_actions(visitor: ViewPage, question: str) -> None:
    actions, answer = QUESTIONS[question]
    page = visitor.go("/run/today")
    for action in actions:
        page.wait_for_load_state()
        action(page)
    assert len(actions) <= 2
    expect(page.locator("main").get_by_text(answer).first).to_be_visible()


def test_one_case_is_a_file_in_two_actions(visitor: ViewPage, tmp_path: Path) -> None:
    page = visitor.go("/run/today")
    page.get_by_role("link", name="What of 7?").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="This case as a file").click()
    download.value.save_as(tmp_path / "case.html")
    html = (tmp_path / "case.html").read_text()
    assert html.count("<h2><bdi>") == 1
    assert "needle 7" in html
    assert "Is it a good plan?" in html


def test_the_address_keeps_what_was_chosen_and_back_takes_it_back(visitor: ViewPage) -> None:
    page = visitor.go("/run/today")
    page.wait_for_load_state()
    choose("alpha", "passed")(page)
    expect(page.get_by_role("status").first).to_have_text("0 cases")
    page.get_by_role("combobox", name="counted by").focus()
    choose("counted by", "any repeat")(page)
    expect(page.get_by_role("status").first).to_have_text("0 cases")
    expect(page.get_by_text("alpha passed in any repeat").last).to_be_visible()
    assert page.url.endswith("/run/today?is=alpha%3Apassed&repeats=any")
    expect(page.get_by_role("combobox", name="counted by")).to_be_focused()
    page.go_back()
    page.go_back()
    expect(page.get_by_role("status").first).to_have_text("31 cases")
    expect(page.get_by_role("combobox", name="alpha", exact=True)).to_have_value("")


def test_a_filter_that_fits_nothing_says_which_of_its_parts_to_leave_out(visitor: ViewPage) -> None:
    page = visitor.go("/run/today?is=alpha:failed&is=gamma:failed&q=needle")
    expect(page.locator("main")).to_contain_text("without gamma failed: 1 case")
    page.locator("main li", has_text="without gamma failed").get_by_role("link").click()
    expect(page.locator(".matrix tbody tr")).to_have_count(1)


def test_a_case_with_nine_long_answers_fits_a_telephone(visitor: ViewPage) -> None:
    page = visitor.go("/run/today/case?id=case-07&at=7")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollHeight") <= 4_000
    expect(page.locator("article")).to_have_count(9)
    expect(page.locator("article .prose table:visible")).to_have_count(1)
    page.get_by_role("link", name="Texts as written").click()
    expect(page.locator("article pre", has_text="**first**").first).to_be_visible()


def test_an_answer_of_the_strip_is_unfolded_and_all_its_steps_are_shown_within_the_list(visitor: ViewPage) -> None:
    page = visitor.go("/run/today/case?id=case-08&at=8&sort=score")
    answer = page.locator("article").nth(4)
    expect(answer.locator("summary", has_text="Steps: 201")).to_be_hidden()
    page.locator(".strip a").nth(4).click()
    answer.locator("summary", has_text="Steps: 201").click()
    expect(answer.locator(".step:visible")).to_have_count(200)
    answer.get_by_role("link", name="Show all steps").click()
    expect(answer.locator(".step:visible")).to_have_count(201)
    expect(answer.locator("summary", has_text="Steps: 201")).to_be_in_viewport()
    expect(page.get_by_role("link", name="Next failure")).to_be_visible()


def test_axe_finds_nothing_serious(visitor: ViewPage) -> None:
    for path in ("/run/today?sort=cost&col=grader:judge&is=alpha:failed&q=case-1", "/run/today/case?id=case-07&at=7"):
        page = visitor.go(path)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert visitor.serious_faults_of_schemes() == {}, path
