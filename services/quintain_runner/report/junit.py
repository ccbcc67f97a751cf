"""Writes a run as JUnit XML: one suite for each target and one test case for each row.

Rows are streamed, so memory does not grow with the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import XMLGenerator

from quintain_runner.report.escaping import xml_text
from quintain_runner.report.run_report import RunReport
from quintain_runner.report.summary import TrialCounts
from quintain_runner.results.atomic_file import atomic_write
from quintain_runner.results.row import Row, RowStatus

#: How much of an answer, or of a grader's words, a failure shows, in characters.
_MAX_TEXT_CHARACTERS = 2_000


def write_junit(path: Path, report: RunReport) -> None:
    """Write the file, in one step. Raises `QuintainError` where the disk refuses it."""
    with atomic_write(path) as file:
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
    name = f"{report.run.name}.{target}"
    out.start("testsuite", name=name, **attributes)
    for row in report.rows():
        if row.target == target:
            _write_case(out, name, row)
    out.end("testsuite")


def _write_case(out: _XmlWriter, suite: str, row: Row) -> None:
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
    out.end("testcase")


def _verdict_lines(row: Row) -> Iterator[str]:
    """What each grader said, and of what."""
    for name, grader in row.graders.items():
        reason = f": {grader.reason[:_MAX_TEXT_CHARACTERS]}" if grader.reason else ""
        yield f"{name}: {'passed' if grader.passed else 'failed'}, score {grader.score}{reason}"
    yield f"answer: {(row.output or '')[:_MAX_TEXT_CHARACTERS]}"


def _count_attributes(counts: TrialCounts) -> dict[str, str]:
    """Rows in doubt count as errors: of them, too, nobody knows a score. What waits has no row."""
    errors = counts.errors + counts.in_doubt
    values = {"tests": counts.graded + errors, "failures": counts.graded - counts.passed, "errors": errors}
    return {name: str(count) for name, count in values.items()}


def _answer_seconds(report: RunReport) -> dict[str, float]:
    """What each target's answers took together."""
    seconds = dict.fromkeys(report.summary.per_target, 0.0)
    for row in report.rows():
        seconds[row.target] += row.duration_ms / 1000
    return seconds


class _XmlWriter:
    """Elements with foreign text in them."""

    def __init__(self, xml: XMLGenerator) -> None:
        self._xml = xml
        xml.startDocument()

    def start(self, element: str, **attributes: str) -> None:
        """Begin an element, on a line of its own."""
        self._xml.ignorableWhitespace("\n")
        self._xml.startElement(element, {name: xml_text(value) for name, value in attributes.items()})  # type: ignore[arg-type]

    def end(self, element: str) -> None:
        """End it."""
        self._xml.endElement(element)

    def write_element(self, element: str, text: str, **attributes: str) -> None:
        """An element that holds text."""
        self.start(element, **attributes)
        self._xml.characters(xml_text(text))
        self.end(element)
