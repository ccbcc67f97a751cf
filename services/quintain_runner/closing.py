"""The end of a run on a terminal: a table, and a last line that says the exit code, why, and what to do next."""

from __future__ import annotations

import shlex

from rich.table import Table

from quintain_runner.summary import Counts, ExitCode, RunSummary, calls_to_finish
from quintain_runner.terminal import plain, shown


def closing_table(summary: RunSummary) -> Table:
    """Cases, passed, mean score, calls and tokens per target, and in all where there are several."""
    table = Table(title=f"{summary.cases} cases", title_justify="left", title_style="bold")
    table.add_column("target")
    for column in ("cases", "passed", "mean score", "errors", "in doubt", "calls", "tokens in/out"):
        table.add_column(column, justify="right")
    for name, counts in summary.per_target.items():
        table.add_row(shown(name), *_cells(counts, summary.cases))
    if len(summary.per_target) > 1:
        table.add_section()
        table.add_row("all", *_cells(summary.total, summary.cases))
    return table


def last_line(summary: RunSummary, command: str) -> str:
    """The exit code, why, and the next useful command; ``command`` is what the user gave."""
    code, total = summary.exit_code, summary.total
    why = {
        ExitCode.BUDGET_SPENT: (
            f"the budget is spent ({summary.calls} of {summary.max_calls} calls), {total.waiting} trials wait and "
            f"every row so far is kept. To finish: {command} --max-calls {calls_to_finish(summary)}"
        ),
        ExitCode.ERRORS: _errors(summary, command),
        ExitCode.BELOW_THRESHOLD: (
            f"mean score {score(total.mean_score)} is below the threshold {summary.threshold}. What failed: "
            f"grep '\"pass\":false' {_path(summary)}"
        ),
        ExitCode.PASSED: f"{_passed(summary)}. Every row: {summary.results}",
    }[code]
    return plain(f"exit {int(code)}: {why}", longest=1000)


def score(mean: float | None) -> str:
    """A mean score to show, with three digits; a dash where there is none."""
    return "-" if mean is None else f"{mean:.3f}"


def _errors(summary: RunSummary, command: str) -> str:
    total = summary.total
    doubt = f"{total.in_doubt} of {total.trials} trials are in doubt (charged, outcome unknown) and kept"
    if not total.errors:
        return f"{doubt}. Which: grep inDoubt {_path(summary)}"
    what = f"{total.errors} of {total.trials} trials erred" + (f", {doubt}" if total.in_doubt else "")
    return f"{what}. The same command again asks the errors once more, and only those: {command}"


def _path(summary: RunSummary) -> str:
    return shlex.quote(str(summary.results))


def _passed(summary: RunSummary) -> str:
    mean = f"mean score {score(summary.total.mean_score)}"
    return mean if summary.threshold is None else f"{mean}, threshold {summary.threshold}"


def _cells(counts: Counts, cases: int) -> list[str]:
    times = counts.trials // cases
    return [
        str(cases) if times == 1 else f"{cases} x {times}",
        f"{counts.passed}/{counts.graded}",
        score(counts.mean_score),
        str(counts.errors),
        str(counts.in_doubt),
        str(counts.calls),
        f"{counts.input_tokens}/{counts.output_tokens}",
    ]
