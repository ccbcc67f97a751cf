"""Writes a run as JUnit XML: one suite for each target, under each prompt, and one test case for each row.

Rows are streamed, so memory does not grow with the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import XMLGenerator

from quintain_runner.escaping import xml_text
from quintain_runner.report.run_report import RunReport
from quintain_runner.report.summary import TrialCounts
from quintain_runner.results.atomic_file import atomic_write
from quintain_runner.results.row import Row, RowStatus

#: The most characters of an answer, or of a grader's reason, that a failure shows.
_MAX_TEXT_CHARACTERS = 2_000


def write_junit(path: Path, report: RunReport) -> None:
    """Write the report as JUnit XML, atomically. Raises `QuintainError` if the file cannot be written."""
    with atomic_write(path, mode=0o666) as file:
        out = _XmlWriter(XMLGenerator(file, encoding="utf-8", short_empty_elements=True))
        total = report.summary.total
        seconds = _answer_seconds(report)
        out.start("testsuites", name=report.run.name, **_count_attributes(total))
        for target, counts in report.summary.per_target.items():
            attributes = {
                "timestamp": report.run.started_at[:19],
                "time": f"{seconds[target]:.3f}",
                **_count_attributes(counts),
            }
            _write_suite(out, report, target, attributes)
        out.end("testsuites")
        file.write(b"\n")


def _write_suite(out: _XmlWriter, report: RunReport, target: str, attributes: Mapping[str, str]) -> None:
    """Write the suite of one target."""
    name = f"{report.run.name}.{target}"
    out.start("testsuite", name=name, **attributes)
    for row in report.rows():
        if row.column == target:
            _write_case(out, name, row)
    out.end("testsuite")


def _write_case(out: _XmlWriter, suite: str, row: Row) -> None:
    """Write the test case of one row: passed, failure or error."""
    case = row.case_id if row.repeat == 1 else f"{row.case_id} #{row.repeat}"
    out.start("testcase", classname=suite, name=case, time=f"{row.duration_ms / 1000:.3f}")
    if row.status is not RowStatus.GRADED:
        code = row.error.code if row.error else row.status
        kind = "in doubt" if row.status is RowStatus.IN_DOUBT else code
        out.write_element("error", row.error.error if row.error else "", type=kind, message=f"{kind}: no score")
    elif not row.passed:
        failed = [name for name, grader in row.graders.items() if not grader.passed]
        out.write_element(
            "failure", "\n".join(_verdict_lines(row)), type="failed", message=f"not passed: {', '.join(failed)}"
        )
    if row.stale is not None:
        out.write_element("system-out", f"stale: {'; '.join(row.stale)}")
    out.end("testcase")


def _verdict_lines(row: Row) -> Iterator[str]:
    """The verdict of each grader, and the answer."""
    for name, grader in row.graders.items():
        reason = f": {grader.reason[:_MAX_TEXT_CHARACTERS]}" if grader.reason else ""
        yield f"{name}: {'passed' if grader.passed else 'failed'}, score {grader.score}{reason}"
    yield f"answer: {(row.output or '')[:_MAX_TEXT_CHARACTERS]}"


def _count_attributes(counts: TrialCounts) -> dict[str, str]:
    """The count attributes of a suite. Rows in doubt count as errors, because they have no score; pending trials have
    no row.
    """
    errors = counts.errors + counts.in_doubt
    values = {"tests": counts.graded + errors, "failures": counts.graded - counts.passed, "errors": errors}
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
