"""Writes a run as CSV, as a Markdown page and as JUnit XML."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from xml.sax.saxutils import XMLGenerator

from quintain.errors import QuintainError
from quintain_runner.files import atomic_write
from quintain_runner.report.headline import headline
from quintain_runner.report.notes import account_lines, parked_target_notes
from quintain_runner.report.run_report import RunReport, question_text
from quintain_runner.report.summary import (
    Gate,
    TrialCounts,
    exit_line,
)
from quintain_runner.report.tables import run_tables
from quintain_runner.report.text_table import TextTable, bill_table
from quintain_runner.results.counts import UNCOMPARED_TEXT, has_cut_answer
from quintain_runner.results.row import Check, GraderRow, Row, RowStatus
from quintain_runner.untrusted import csv_cell, markdown_code_span, xml_text

_LEADING_COLUMNS = ("repeat", "status", "score", "pass")
_TRAILING_COLUMNS = (
    "calls", "input_tokens", "output_tokens", "duration_ms", "turns", "lost_turns", "cut", "error_code", "error",
    "output", "question", "expected",
)  # fmt: skip

Cell = str | int | float | None


def write_csv(path: Path, report: RunReport) -> None:
    """Write the rows of a report as CSV, atomically, in UTF-8 with a byte order mark, which spreadsheets need.

    Raises `QuintainError` if the file cannot be written.
    """
    columns, rows = flat_rows(report, report.rows())
    with atomic_write(path, mode=0o666) as file:
        file.write(codecs.BOM_UTF8)
        writer = csv.writer(codecs.getwriter("utf-8")(file))
        writer.writerow([csv_cell(name) for name in columns])
        for row in rows:
            writer.writerow([csv_cell(cell) if isinstance(cell, str) else cell for cell in row])


def flat_rows(report: RunReport, shown: Iterable[Row]) -> tuple[list[str], Iterator[list[Cell]]]:
    """The columns of a report's rows, and the cells of each of the ``shown`` rows, read as they are needed."""
    graders = list(
        dict.fromkeys(name for statistics in report.analysis.targets.values() for name in statistics.graders)
    )
    has_prompts = bool(report.run.configuration.prompts)
    columns = ["case_id", "target", *(["prompt"] if has_prompts else []), *_LEADING_COLUMNS]
    judges = {name: list(jury.judges) for name, jury in report.analysis.juries.items()}
    for name in graders:
        columns += [f"{name} {what}" for what in ("score", "pass", "reason", *(["tied"] if name in judges else []))]
        columns += [f"{name} {judge} {what}" for judge in judges.get(name, ()) for what in ("score", "pass")]
    tags = list(report.analysis.by)
    # A field of a case may have the name of a column.
    columns += [*_TRAILING_COLUMNS, *(f"case {tag}" if tag in {*columns, *_TRAILING_COLUMNS} else tag for tag in tags)]

    def cells() -> Iterator[list[Cell]]:
        for row in shown:
            names: list[Cell] = [row.case_id, row.target, *([row.prompt] if has_prompts else [])]
            yield [
                *names,
                *_cells(row, graders, judges),
                *((", ".join((row.tags or {}).get(tag, ())) or None) for tag in tags),
            ]

    return columns, cells()


def _cells(row: Row, graders: Sequence[str], judges: Mapping[str, Sequence[str]]) -> list[Cell]:
    """The cells of one row after its names, in the order of the columns; ``graders`` are the graders' names, and
    ``judges`` those of the juries among them.
    """
    passed = None if row.score is None else int(row.passed)
    cells: list[Cell] = [row.repeat, row.status.value, row.score, passed]
    verdicts = row.verdicts
    for name in graders:
        cells += _verdict_cells(verdicts.get(name))
        grader = row.graders.get(name)
        cells.append(None if grader is None else grader.reason)
        if name in judges:
            cells.append(None if grader is None or grader.score is None else int(grader.tied))
            votes = {} if grader is None else grader.votes
            cells += (cell for judge in judges[name] for cell in _verdict_cells(votes.get(judge)))
    usage, error, held = row.token_usage, row.error, row.conversation
    cells += [row.calls, usage.input, usage.output, row.duration_ms]
    cells += [None, None] if held is None else [len(held.turns), held.lost_turns]
    cells.append(int(has_cut_answer(row)) if row.has_answer else None)
    cells += (None, None) if error is None else (error.code, error.error)
    expected = None if row.case is None else row.case.expected
    return [*cells, row.output, question_text(row) or None, _content_cell(expected)]


def _content_cell(value: object) -> Cell:
    """A value of a case as a cell: a text as it is, any other as JSON."""
    return value if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False)


def _verdict_cells(verdict: GraderRow | Check | None) -> list[Cell]:
    if verdict is None:
        return [None, None]
    return [verdict.score, None if verdict.passed is None else int(verdict.passed)]


#: The most cases shown that did not pass; the results folder has all of them.
MAX_SHOWN_CASES = 20

#: The most characters of untrusted text in one cell.
_MAX_CELL_CHARACTERS = 160


def write_markdown(path: Path, report: RunReport, command: str, *, append: bool = False) -> None:
    """Write the report as Markdown, atomically, or append it to an existing page, such as the summary of a CI job.

    ``command`` is the command that resumes the run. Raises `QuintainError` if the file cannot be written.
    """
    page = render_markdown(report, command)
    if not append:
        with atomic_write(path, mode=0o666) as file:
            file.write(page.encode())
        return
    try:
        with path.open("a", encoding="utf-8") as summary:
            summary.write(page)
    except OSError as error:
        raise QuintainError(f"{path}: cannot be written ({error.strerror})") from None


def render_markdown(report: RunReport, command: str) -> str:
    """The report as a Markdown page."""
    page = io.StringIO()
    outcome = markdown_code_span(exit_line(report.summary, command), max_length=1000)
    first = headline(report.summary, report.analysis, report.bill)
    page.write(f"## {markdown_code_span(report.run.name)}\n\n{_escape_markdown(' '.join(filter(None, first)))}\n")
    page.write(f"\n{outcome}\n")
    for note in parked_target_notes(report.summary):
        page.write(f"\n{markdown_code_span(note, max_length=1000)}\n")
    for table in (*run_tables(report), *([] if report.bill is None else [bill_table(report.bill)])):
        page.write(f"\n{''.join(markdown_table_lines(table))}")
    for line in account_lines(report.summary.total, report.summary.per_target, report.bill):
        page.write(f"\n{_escape_markdown(line)}\n")
    rows = list(islice(_rows_not_passed(report), MAX_SHOWN_CASES + 1))
    if rows:
        cells = [_not_passed_cells(row) for row in rows[:MAX_SHOWN_CASES]]
        page.write(f"\n### Not passed\n\n{''.join(_table_lines(_NOT_PASSED_COLUMNS, cells, 0))}")
    if len(rows) > MAX_SHOWN_CASES:
        page.write(f"\nThe first {MAX_SHOWN_CASES}; every row: {markdown_code_span(str(report.summary.results))}\n")
    return page.getvalue()


def markdown_table_lines(table: TextTable) -> Iterator[str]:
    """A table as Markdown lines: its title as a heading, the table and its notes."""
    table = table.without_empty_columns()
    yield f"### {_escape_markdown(table.title)}\n\n"
    rows = [*table.rows, table.total] if table.total else table.rows
    shown = [
        tuple(
            markdown_code_span(cell) if i < table.name_columns else _escape_markdown(cell) for i, cell in enumerate(row)
        )
        for row in rows
    ]
    yield from _table_lines(table.columns, shown, table.name_columns)
    for note in table.notes:
        yield f"\n{_escape_markdown(note)}\n"


_NOT_PASSED_COLUMNS = ("case", "target", "score", "why", "answer")


def _not_passed_cells(row: Row) -> tuple[str, ...]:
    """The cells of a row that did not pass."""
    case = row.case_id if row.repeat == 1 else f"{row.case_id} #{row.repeat}"
    score = "-" if row.score is None else f"{row.score:.3f}"
    if row.error is not None:
        why = f"{row.error.code}: {row.error.error}"
    elif row.status is RowStatus.UNCOMPARED:
        why = UNCOMPARED_TEXT
    else:
        failed = ((name, grader) for name, grader in row.graders.items() if not grader.passed)
        why = "; ".join(f"{name}: {grader.reason or 'failed'}" for name, grader in failed)
    texts = (case, row.column), (why, row.output or "")
    (first, second) = (
        tuple(markdown_code_span(text, max_length=_MAX_CELL_CHARACTERS) for text in pair) for pair in texts
    )
    return (*first, score, *second)


def _rows_not_passed(report: RunReport) -> Iterator[Row]:
    """The rows that have no score or did not pass."""
    return (row for row in report.rows() if row.status is not RowStatus.GRADED or not row.passed)


def _table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], name_columns: int) -> Iterator[str]:
    """The lines of a Markdown table; columns after the first ``name_columns`` are right-aligned, if there are any
    names.
    """
    yield f"| {' | '.join(map(_escape_markdown, columns))} |\n"
    yield f"| {' | '.join('---:' if name_columns and i >= name_columns else '---' for i in range(len(columns)))} |\n"
    for row in rows:
        yield f"| {' | '.join(row)} |\n"


def _escape_markdown(text: str) -> str:
    """Escape every Markdown character of a text that is ours, except for the names of targets in it."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|~#&" else char for char in text)


#: The most characters of an answer, or of a grader's reason, that a failure shows.
_MAX_TEXT_CHARACTERS = 2_000


def write_junit(path: Path, reports: Sequence[RunReport]) -> None:
    """Write the reports as JUnit XML, atomically. Raises `QuintainError` if the file cannot be written."""
    with atomic_write(path, mode=0o666) as file:
        out = _XmlWriter(XMLGenerator(file, encoding="utf-8", short_empty_elements=True))
        counts = [_count_attributes(one.summary.total, one.summary.gates) for one in reports]
        sums = {name: str(sum(int(each[name]) for each in counts)) for name in counts[0]}
        out.start("testsuites", name=", ".join(report.run.name for report in reports), **sums)
        for report in reports:
            _write_run(out, report)
        out.end("testsuites")
        file.write(b"\n")


def _write_run(out: _XmlWriter, report: RunReport) -> None:
    """Write the suites of a run: one of each target, and one of its gates."""
    seconds = _answer_seconds(report)
    for target, counts in report.summary.per_target.items():
        attributes = {
            "timestamp": report.run.started_at[:19],
            "time": f"{seconds[target]:.3f}",
            **_count_attributes(counts),
            **({"skipped": str(counts.unscored)} if counts.unscored else {}),
        }
        _write_suite(out, report, target, attributes)
    if report.summary.gates:
        _write_gates(out, report)


def _write_suite(out: _XmlWriter, report: RunReport, target: str, attributes: Mapping[str, str]) -> None:
    """Write the suite of one target."""
    name = f"{report.run.name}.{target}"
    out.start("testsuite", name=name, **attributes)
    for row in report.rows():
        if row.column == target:
            _write_case(out, name, row)
    out.end("testsuite")


def _write_gates(out: _XmlWriter, report: RunReport) -> None:
    """Write the suite of the conditions on the whole run."""
    name, gates = f"{report.run.name}.gates", report.summary.gates
    out.start(
        "testsuite",
        name=name,
        timestamp=report.run.started_at[:19],
        time="0.000",
        **_count_attributes(TrialCounts(), gates),
    )
    for gate in gates:
        out.start("testcase", classname=name, name=gate.name, time="0.000")
        if not gate.passed:
            out.write_element("failure", "", type="gate", message=gate.text)
        out.end("testcase")
    out.end("testsuite")


def _write_case(out: _XmlWriter, suite: str, row: Row) -> None:
    """Write the test case of one row: passed, failure or error."""
    case = row.case_id if row.repeat == 1 else f"{row.case_id} #{row.repeat}"
    out.start("testcase", classname=suite, name=case, time=f"{row.duration_ms / 1000:.3f}")
    if row.status is RowStatus.UNCOMPARED:
        out.write_element("skipped", "", message=UNCOMPARED_TEXT)
    elif row.status is not RowStatus.GRADED:
        code = row.error.code if row.error else row.status
        kind = "in doubt" if row.status is RowStatus.IN_DOUBT else code
        out.write_element("error", row.error.error if row.error else "", type=kind, message=f"{kind}: no score")
    elif not row.passed:
        failed = [name for name, grader in row.graders.items() if not grader.passed]
        out.write_element(
            "failure", "\n".join(_verdict_lines(row)), type="failed", message=f"not passed: {', '.join(failed)}"
        )
    out.end("testcase")


def _verdict_lines(row: Row) -> Iterator[str]:
    """The verdict of each grader, and the answer."""
    for name, grader in row.graders.items():
        reason = f": {grader.reason[:_MAX_TEXT_CHARACTERS]}" if grader.reason else ""
        yield f"{name}: {'passed' if grader.passed else 'failed'}, score {grader.score}{reason}"
    yield f"answer: {(row.output or '')[:_MAX_TEXT_CHARACTERS]}"


def _count_attributes(counts: TrialCounts, gates: Sequence[Gate] = ()) -> dict[str, str]:
    """The count attributes of a suite. Rows in doubt count as errors, because they have no score; pending trials have
    no row.
    """
    errors = counts.errors + counts.in_doubt
    tests = counts.graded + errors + counts.unscored + len(gates)
    failures = counts.graded - counts.passed + sum(not gate.passed for gate in gates)
    values = {"tests": tests, "failures": failures, "errors": errors}
    return {name: str(count) for name, count in values.items()}


def _answer_seconds(report: RunReport) -> dict[str, float]:
    """The total time that each target took for its answers, in seconds."""
    seconds = dict.fromkeys(report.summary.per_target, 0.0)
    for row in report.rows():
        seconds[row.column] += row.duration_ms / 1000
    return seconds


class _XmlWriter:
    """Writes XML elements with untrusted text."""

    def __init__(self, xml: XMLGenerator) -> None:
        self._xml = xml
        xml.startDocument()

    def start(self, element: str, **attributes: str) -> None:
        """Write the start tag of an element, on a new line."""
        self._xml.ignorableWhitespace("\n")
        self._xml.startElement(element, {name: xml_text(value) for name, value in attributes.items()})  # type: ignore[arg-type]

    def end(self, element: str) -> None:
        """Write the end tag of an element."""
        self._xml.endElement(element)

    def write_element(self, element: str, text: str, **attributes: str) -> None:
        """Write an element that contains text."""
        self.start(element, **attributes)
        self._xml.characters(xml_text(text))
        self.end(element)
