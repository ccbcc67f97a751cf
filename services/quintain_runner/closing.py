"""The end of a run on a terminal: its tables, and a last line that says the exit code, why, and what to do next."""

from __future__ import annotations

import re
import shlex

from rich.table import Table
from rich.text import Text

from quintain_runner.figures import score
from quintain_runner.sheets import Sheet
from quintain_runner.summary import Counts, ExitCode, RunSummary
from quintain_runner.terminal import plain, shown

#: The budget in a command, which another one is to take the place of.
_OLD_BUDGET = re.compile(r" --max-calls[ =]\d+")


def table_of(sheet: Sheet) -> Table:
    """A sheet as a table; its notes are lines of their own."""
    table = Table(title=Text(plain(sheet.title)), title_justify="left", title_style="bold")
    for number, column in enumerate(sheet.columns):
        table.add_column(column, justify="left" if number < sheet.names else "right", overflow="fold")
    for row in sheet.rows:
        table.add_row(*map(shown, row))
    if sheet.total is not None:
        table.add_section()
        table.add_row(*map(shown, sheet.total))
    return table


def note(summary: RunSummary) -> str | None:
    """What of the budget no row accounts for; None where every call has its row."""
    if not summary.calls_without_row:
        return None
    return (
        f"{summary.calls_without_row} of {summary.calls} calls are in no row: graders that had called when they were "
        "killed or lost began again, and what waited when the run ended may have been answered"
    )


def last_line(summary: RunSummary, command: str) -> str:
    """The exit code, why, and the next useful command; ``command`` is what the user gave."""
    command = _OLD_BUDGET.sub("", command) if summary.parked else command
    code, total = summary.exit_code, summary.total
    why = {
        ExitCode.BUDGET_SPENT: (
            f"the budget is spent ({summary.calls} of {summary.max_calls} calls), {_open(total)} and every row so far "
            f"is kept. {_more(summary)} To finish: {command} --max-calls {budget_to_finish(summary)}"
        ),
        ExitCode.ERRORS: _errors(summary, command),
        ExitCode.BELOW_THRESHOLD: (
            f"mean score {score(total.mean_score)} is below the threshold {summary.threshold}. What failed: "
            f"grep '\"pass\":false' {_path(summary)}"
        ),
        ExitCode.PASSED: f"{_passed(summary)}. Every row: {summary.results}",
    }[code]
    return plain(f"exit {int(code)}: {why}", longest=1000)


def budget_to_finish(summary: RunSummary) -> int:
    """What ``max_calls`` would have to be for the open trials too."""
    return summary.calls + max(1, summary.calls_left)


def _open(total: Counts) -> str:
    erred = f" and {total.errors} erred" if total.errors else ""
    return f"{total.waiting} trials wait{erred},"


def _more(summary: RunSummary) -> str:
    more = budget_to_finish(summary) - summary.max_calls
    how = "by what the graded ones took" if summary.total.graded else "at most"
    return f"It takes {more} calls more, {how}."


def _errors(summary: RunSummary, command: str) -> str:
    total = summary.total
    doubt = f"{total.in_doubt} of {total.trials} trials are in doubt (charged, outcome unknown) and kept"
    if not total.errors:
        return f"{doubt}. To ask them once more, charged again: {command} --in-doubt retry"
    what = f"{total.errors} of {total.trials} trials erred" + (f", {doubt}" if total.in_doubt else "")
    return f"{what}. The same command again asks the errors once more, and only those: {command}"


def _path(summary: RunSummary) -> str:
    return shlex.quote(str(summary.results))


def _passed(summary: RunSummary) -> str:
    mean = f"mean score {score(summary.total.mean_score)}"
    return mean if summary.threshold is None else f"{mean}, threshold {summary.threshold}"
