"""The files that a run leaves for a CI job and a spreadsheet, from the rows of a folder."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from quintain.contracts.session import CostUsage, UsageLine
from quintain.errors import ConfigError
from quintain_runner.report.report_files import MAX_SHOWN_CASES, render_markdown, write_csv, write_junit, write_markdown
from quintain_runner.report.run_report import RunReport, read_report
from quintain_runner.report.tables import run_tables
from quintain_runner.report.text_table import TextTable, html_table, rich_tables
from quintain_runner.results.bill import Bill
from quintain_runner.results.row import Check, GraderRow, JudgeUsed, RowCase, RowStatus
from support.results_folder import errored_row, graded_row, write_results

#: What Ant, Jenkins and GitLab need of each element of JUnit XML. None of them publishes a schema that all hold to.
NEEDED = {
    "testsuites": {"tests": r"\d+", "failures": r"\d+", "errors": r"\d+"},
    "testcase": {"name": "", "classname": "", "time": r"\d+(\.\d{1,3})?"},
    "failure": {"type": ""},
}
NEEDED["error"] = NEEDED["failure"]
NEEDED["testsuite"] = {**NEEDED["testsuites"], "name": "", "time": NEEDED["testcase"]["time"]}
NEEDED["testsuite"]["timestamp"] = r"\d{4}(-\d\d){2}T\d\d(:\d\d){2}"


def junit_of(path: Path) -> ET.Element:
    """The root of the file, whose elements have what they need, and whose cases have one outcome at most."""
    root = ET.parse(path).getroot()
    for element in root.iter():
        for name, pattern in NEEDED[element.tag].items():
            assert re.fullmatch(pattern or r"(?s).+", element.attrib[name]), (element.tag, name)
        assert element.tag != "testcase" or len(element) <= 1
    return root


COMMAND = "quintain run eval.yaml"
HOSTILE = "\x1b[31m<b>&]]>\x00\x0b\ufffe\x9b2J |`[x](javascript:1)"


def two_targets(folder: Path) -> RunReport:
    rows = [graded_row("1", 1.0), graded_row("2", 0.25), errored_row("3"), errored_row("4", status=RowStatus.IN_DOUBT)]
    rows += [graded_row(str(n), 1.0, target="other") for n in (1, 2, 3, 4)]
    return write_results(folder, rows, targets=["bot", "other"])


def shown(sheet: TextTable, width: int = 200) -> list[str]:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(*rich_tables(sheet, width))
    return capture.get().splitlines()


def test_a_table_that_is_wider_than_the_terminal_is_several_and_breaks_no_word() -> None:
    columns = ("target", *(f"grader-{number}" for number in range(12)))
    rows = [("alpha-large", *(f"{number}.123" for number in range(12))), ("beta", *(["-"] * 12))]
    lines = shown(TextTable("scores", columns, rows), width=80)
    assert max(map(len, lines)) <= 80
    words = " ".join(lines).split()
    assert set(columns) | set(rows[0]) <= set(words)
    assert words.count("alpha-large") == words.count("target") > 1
    assert words.count("scores") == 1
    assert len(shown(TextTable("scores", columns, rows), width=200)) < len(lines)
    # Names steer no terminal.
    lines = shown(TextTable("[red]title\x1b[2J", ("a", "b"), [("[red]evil\x1b[2J", "1")], total=("all", "2")))
    assert any("[red]evil" in line for line in lines)
    assert "\x1b" not in "".join(lines)


def test_junit_has_a_suite_per_target_and_a_case_per_row(tmp_path: Path) -> None:
    write_junit(tmp_path / "junit.xml", [two_targets(tmp_path / "run")])
    root = junit_of(tmp_path / "junit.xml")
    assert root.attrib == {"name": "eval", "tests": "9", "failures": "1", "errors": "2"}
    bot, other, gates = root
    assert [(case.get("name"), len(case)) for case in gates] == [("mean score", 0)]
    assert (bot.get("name"), bot.get("tests"), bot.get("failures"), bot.get("errors")) == ("eval.bot", "4", "1", "2")
    assert (bot.get("time"), other.get("failures")) == ("3.000", "0")
    assert [[child.tag for child in case] for case in bot] == [[], ["failure"], ["error"], ["error"]]
    assert [case.get("name") for case in bot] == ["1", "2", "3", "4"]
    failure, error, doubt = bot[1][0], bot[2][0], bot[3][0]
    assert failure.get("message") == "not passed: same"
    assert failure.text == "same: failed, score 0.25\nanswer: answer"
    assert (error.get("type"), error.text) == ("provider_error", "it broke")
    assert doubt.get("type") == "in doubt"


def test_junit_names_the_repeat_and_leaves_superseded_rows_out(tmp_path: Path) -> None:
    rows = [errored_row("1"), graded_row("1", 1.0), graded_row("1", 1.0, repeat=2), graded_row("1", 1.0, repeat=3)]
    write_junit(tmp_path / "junit.xml", [write_results(tmp_path / "run", rows, repeats=2)])
    suite, _ = ET.parse(tmp_path / "junit.xml").getroot()
    assert [(case.get("name"), len(case)) for case in suite] == [("1", 0), ("1 #2", 0)]
    assert suite.get("tests") == "2"


def test_what_models_wrote_spoils_no_file(tmp_path: Path) -> None:
    judged = {HOSTILE.replace("\x00", ""): GraderRow(score=0.0, passed=False, reason=HOSTILE)}
    rows = [graded_row(HOSTILE, 0.0, output=HOSTILE).with_fields(graders=judged), graded_row("2", 1.0)]
    report = write_results(tmp_path / "run", rows)
    write_junit(tmp_path / "junit.xml", [report])
    assert junit_of(tmp_path / "junit.xml").get("tests") == "3"
    write_csv(tmp_path / "rows.csv", report)
    write_markdown(tmp_path / "page.md", report, COMMAND)
    for name in ("junit.xml", "rows.csv", "page.md"):
        text = (tmp_path / name).read_text(encoding="utf-8-sig")
        assert not any(char in text for char in "\x1b\x00\x0b\x9b"), name
        assert "<b>" in text or "&lt;b&gt;" in text
    page = html_table(TextTable(HOSTILE, (HOSTILE,), [(HOSTILE,)], notes=[HOSTILE]))
    assert ("<b>" in page, "\x1b" in page, page.count("&lt;b&gt;")) == (False, False, 3)


def test_each_criterion_of_a_rubric_has_columns_of_its_own(tmp_path: Path) -> None:
    checks = [
        Check(id="right", text="It is Rome.", passed=True, score=0.75, weight=3),
        Check(id="short", text="It is short.", passed=False, score=0.25, weight=1),
        Check(id="other", text="A check of no rubric.", passed=True, score=1),
    ]
    judged = GraderRow(score=0.625, passed=True, reason="said", checks=checks)
    rows = [graded_row(str(n), 1.0).with_fields(graders={"quality": judged}) for n in (1, 2)]
    report = write_results(tmp_path / "run", [*rows, errored_row("3")])
    write_csv(tmp_path / "rows.csv", report)
    with (tmp_path / "rows.csv").open(encoding="utf-8-sig", newline="") as file:
        first, _, last = csv.DictReader(file)
    columns = {name: value for name, value in first.items() if name.startswith("quality")}
    assert columns == {
        "quality score": "0.625", "quality pass": "1", "quality reason": "said",
        "quality · right score": "0.75", "quality · right pass": "1", "quality · right reason": "",
        "quality · short score": "0.25", "quality · short pass": "0", "quality · short reason": "",
    }  # fmt: skip
    assert last["quality · right score"] == ""
    (by_grader,) = [table for table in run_tables(report) if table.title == "By grader"]
    assert [row[0] for row in by_grader.rows] == ["quality", "quality · right", "quality · short"]
    assert [(row[2], row[4]) for row in by_grader.rows] == [("100 %", "0.625"), ("100 %", "0.750"), ("0 %", "0.250")]
    bare = rows[0].without_content()
    assert [*bare.verdicts] == [row[0] for row in by_grader.rows]


def test_the_report_says_which_judge_is_the_target_itself(tmp_path: Path) -> None:
    judged = {"judged": GraderRow(score=1.0, passed=True, judge=JudgeUsed(target="other"))}
    rows = [graded_row("1", 1.0, target=target).with_fields(graders=judged) for target in ("bot", "other")]
    report = write_results(tmp_path / "run", [*rows, errored_row("30")], targets=("bot", "other"))
    (judge,) = report.analysis.judges.values()
    assert judge.own == ["other"]
    assert ["judged: other judged its own" in note for note in run_tables(report)[0].notes] == [True]
    assert write_results(tmp_path / "two", [graded_row("1", 1.0)]).analysis.judges == {}


def test_csv_has_a_line_per_row_and_three_columns_per_grader(tmp_path: Path) -> None:
    asked = RowCase(question="What?", expected=["a", "b"])
    rows = [
        graded_row("1", 0.5, output="=cmd()").with_fields(case=asked, tags={"topic": ["law", "tax"], "output": ["x"]}),
        errored_row("2"),
    ]
    write_csv(tmp_path / "rows.csv", write_results(tmp_path / "run", rows, ended=False))
    with (tmp_path / "rows.csv").open(encoding="utf-8-sig", newline="") as file:
        first, second = csv.DictReader(file)
    told = [first[name] for name in ("case_id", "score", "pass", "same score", "same pass")]
    assert told == ["1", "0.5", "1", "0.5", "1"]
    assert (first["input_tokens"], first["duration_ms"], first["output"]) == ("10", "1500.0", "'=cmd()")
    assert [first[name] for name in ("question", "expected", "topic", "case output")] == [
        "What?", '["a", "b"]', "law, tax", "x",
    ]  # fmt: skip
    told = [second[name] for name in ("status", "score", "error_code", "output")]
    assert told == ["error", "", "provider_error", ""]


def test_markdown_shows_the_tables_and_what_did_not_pass(tmp_path: Path) -> None:
    page = render_markdown(two_targets(tmp_path / "run"), COMMAND)
    assert page.startswith("## `eval`\n\nother passes 50 points more than bot")
    assert "\n`exit 1: 1 of 8 trials erred" in page
    assert "| `bot` | 1/2 | 9-91 % | 0.625 | 0.25-1.00 | 1 |" in page
    assert "### Paired differences" in page
    assert "| `2` | `bot` | 0.250 | `same: failed` | `answer` |" in page
    assert "| `3` | `bot` | - | `provider_error: it broke` |" in page
    assert "`1` | `other`" not in page
    rows = [graded_row(f"case-{n}", 0.0) for n in range(MAX_SHOWN_CASES + 1)]
    page = render_markdown(write_results(tmp_path / "many", rows), COMMAND)
    assert page.count("`bot` | 0.000") == MAX_SHOWN_CASES
    assert f"The first {MAX_SHOWN_CASES}; every row: `{tmp_path}/many/results.jsonl`" in page


def test_the_summary_of_a_job_is_added_to(tmp_path: Path) -> None:
    report = two_targets(tmp_path / "run")
    page = tmp_path / "summary.md"
    page.write_text("what another step wrote\n")
    write_markdown(page, report, COMMAND, append=True)
    assert page.read_text() == f"what another step wrote\n{render_markdown(report, COMMAND)}"
    write_markdown(page, report, COMMAND)
    assert page.read_text() == render_markdown(report, COMMAND)


def test_the_closing_table_has_columns_for_what_there_is(tmp_path: Path) -> None:
    targets, pairs = run_tables(two_targets(tmp_path / "run"))
    assert targets.columns == (
        "target", "passed", "95 %", "mean score", "95 %", "errors", "calls", "in doubt", "tokens in/out",
    )  # fmt: skip
    bot, other = targets.rows
    assert (bot[:4], other[:4]) == (("bot", "1/2", "9-91 %", "0.625"), ("other", "4/4", "51-100 %", "1.000"))
    assert targets.total[:2] == ("all", "5/6")
    assert [row[:2] for row in pairs.rows] == [("bot - other", "passed"), ("", "mean score")]
    # One target needs no sum and no pair; a run that did not end is told as far as it came.
    rows = [errored_row("1"), graded_row("1", 1.0), graded_row("2", 0.0)]
    report = write_results(tmp_path / "one", rows, ended=False)
    (sheet,) = run_tables(report)
    assert (sheet.total, sheet.title, report.run.ended_at) == (None, "2 cases", None)
    assert (report.summary.total.graded, report.summary.total.errors) == (2, 0)
    assert report.analysis.targets["bot"].row.score.value == 0.5


def test_the_cost_of_a_target_is_that_of_its_column_where_it_has_one(tmp_path: Path) -> None:
    lines = (
        UsageLine(target="bot", calls=1, tries=1, cost=CostUsage(spent_usd=2.0)),
        UsageLine(target="judge", grader="j", calls=3, tries=3, cost=CostUsage(spent_usd=0.5)),
        UsageLine(target="gpt", grader="agents", agent="bot", calls=1, tries=1, cost=CostUsage(spent_usd=1.0)),
        UsageLine(target="sim", grader="simulated user", calls=1, tries=1, cost=CostUsage(spent_usd=1.0)),
        UsageLine(target="sim", grader="j", calls=1, tries=1, cost=CostUsage(spent_usd=2.0)),
    )
    others = [("judge (graders)", "$0.5000"), ("gpt (agents)", "$1.00"), ("sim (simulated user, graders)", "$3.00")]
    for prompts, costs in (("a", [("bot · a", "$3.00"), *others]), ("ab", [("bot · a", "-"), ("bot · b", "-")])):
        columns = [f"bot · {prompt}" for prompt in prompts]
        rows = [graded_row("1", 1.0).with_fields(prompt=prompt) for prompt in prompts]
        (sheet, *_) = run_tables(write_results(tmp_path / columns[-1], rows, targets=columns, bill=Bill.of(lines)))
        assert [(row[0], row[-1]) for row in sheet.rows] == costs
        assert (sheet.total or ())[-1] == "$6.50"


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "there is no run.json in it"), ("{", "cannot be read"), ('{"schemaVersion": 2}', "cannot be read")],
)
def test_a_folder_that_is_no_runs_is_refused(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(ConfigError, match=says):
        read_report(tmp_path)


def test_the_worst_rows_are_those_with_the_lowest_scores_one_of_each_case(tmp_path: Path) -> None:
    scores = [("1", 0.4), ("2", 1.0), ("3", 0.2), ("4", 0.3), ("1", 0.1)]
    rows = [graded_row(case_id, score, repeat=n) for n, (case_id, score) in enumerate(scores, start=1)]
    report = write_results(tmp_path / "run", [*rows, errored_row("5")], repeats=5)
    assert [(row.case_id, row.score) for row in report.worst_rows(2)] == [("1", 0.1), ("3", 0.2)]
