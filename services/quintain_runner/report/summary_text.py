"""The end of a run on a terminal: rich tables and a last line with the exit code, its reason and the next command."""

from __future__ import annotations

import re
import shlex

from quintain_runner.escaping import plain_line
from quintain_runner.report.summary import ExitCode, RunSummary, TrialCounts
from quintain_runner.results.row import TARGET_CHANGED
from quintain_runner.statistics.formatting import format_score

#: The budget option in a command, which is replaced by a larger one.
_MAX_CALLS_OPTION = re.compile(r" --max-calls[ =]\d+")


def unaccounted_calls_note(summary: RunSummary) -> str | None:
    """A sentence about the calls that are in no row, or None if every call is in one."""
    if not summary.calls_without_row:
        return None
    return (
        f"{summary.calls_without_row} of {summary.calls} calls are in no row: graders that were killed after a call "
        "were started again, and calls that waited when the run ended may have been answered"
    )


def calls_made_twice_note(summary: RunSummary) -> str | None:
    """A sentence about the calls that were made twice, or None if none is known."""
    if not (count := summary.calls_made_twice):
        return None
    calls = "1 call was" if count == 1 else f"{count} calls were"
    return (
        f"{calls} made twice: the worker was lost before it had an answer, and another one made the call again; it is "
        "charged once here, and the provider may count both"
    )


def parked_target_notes(summary: RunSummary) -> list[str]:
    """A line for each parked target: why, and its last fault's code and words."""
    return [
        plain_line(f"parked {name} after {target.reason}; the last: {target.code}: {target.error}", max_length=1000)
        for name, target in summary.parked_targets.items()
    ]


def unavailable_grader_notes(summary: RunSummary) -> list[str]:
    """A line for each grader that could not be run, and why."""
    return [
        plain_line(f"grader {name} cannot be run, and its verdicts are kept as stale: {why}", max_length=1000)
        for name, why in summary.unavailable_graders.items()
    ]


def exit_line(summary: RunSummary, command: str) -> str:
    """The exit code, its reason, and the next useful command; ``command`` is the command line that the user gave."""
    command = _MAX_CALLS_OPTION.sub("", command) if summary.is_budget_spent else command
    code, total = summary.exit_code, summary.total
    reasons = {
        ExitCode.BUDGET_SPENT: _spent_text(summary, command),
        ExitCode.ERRORS: _errors_text(summary, command),
        ExitCode.BELOW_THRESHOLD: (
            f"mean score {format_score(total.mean_score)} is below the threshold {summary.threshold}. To read "
            f"what failed: quintain view {_folder(summary)}"
        ),
        ExitCode.PASSED: f"{_passed_text(summary)}. To read every answer: quintain view {_folder(summary)}",
    }[code]
    return plain_line(f"exit {int(code)}: {reasons}", max_length=1000)


def budget_to_finish(summary: RunSummary) -> int:
    """The ``max_calls`` with which the remaining trials can be executed too."""
    return summary.plan_calls + max(1, summary.estimated_calls_left)


def _open_trials_text(total: TrialCounts) -> str:
    """The numbers of pending and failed trials, and of those in doubt."""
    erred = f" and {total.errors} erred" if total.errors else ""
    once_more = "charged, or perhaps charged: asked again only with --in-doubt retry"
    in_doubt = f" and {total.in_doubt} in doubt ({once_more})" if total.in_doubt else ""
    return f"{total.waiting} trials wait{erred}{in_doubt},"


def _spent_text(summary: RunSummary, command: str) -> str:
    """The reason and the next command of a run whose budget is spent, or that of the session on which it draws."""
    needed, spent = budget_to_finish(summary), f"{summary.plan_calls} of {summary.max_calls} calls"
    kept = f"{_open_trials_text(summary.total)} and every row so far is kept."
    how = "by what the graded ones took" if summary.total.graded else "at most"
    if (parent := summary.spent_parent) is None:
        return (
            f"the budget is spent ({spent}), {kept} It takes {needed - summary.max_calls} calls more, {how}. "
            f"To finish: {command} --max-calls {needed}"
        )
    return (
        f"session {parent}, that of QUINTAIN_SESSION_TOKEN, has too few calls left (this run made {spent}), {kept} It "
        f"takes {needed - summary.plan_calls} calls more, {how}. When whoever opened that session has raised its limit "
        f"(PATCH /sessions/{parent} with QUINTAIN_ADMIN_TOKEN), to finish: {command} --max-calls "
        f"{max(needed, summary.max_calls)}"
    )


def _errors_text(summary: RunSummary, command: str) -> str:
    """The reason and the next command of a run with errors or rows in doubt."""
    total = summary.total
    if summary.parked_targets:
        names = ", ".join(summary.parked_targets)
        verb = "is" if len(summary.parked_targets) == 1 else "are"
        is_changed = all(parked.code == TARGET_CHANGED for parked in summary.parked_targets.values())
        when = "all workers serve the same configuration" if is_changed else "the endpoint works again"
        return (
            f"{names} {verb} parked after errors, {_open_trials_text(total)} and every row so far is kept. When "
            f"{when}, the same command goes on: {command}"
        )
    if summary.unavailable_graders and total.waiting:
        names = ", ".join(summary.unavailable_graders)
        return (
            f"{_open_trials_text(total)} because grader {names} cannot be run, and every row so far is kept. When it "
            f"can, the same command goes on: {command}"
        )
    unknown = "charged, or perhaps charged, without an answer"
    in_doubt_text = f"{total.in_doubt} of {total.trials} trials are in doubt ({unknown}) and kept"
    if not total.errors:
        return f"{in_doubt_text}. To ask them once more, charged again: {command} --in-doubt retry"
    what = f"{total.errors} of {total.trials} trials erred" + (f", {in_doubt_text}" if total.in_doubt else "")
    return f"{what}. The same command again asks the errors once more, and only those: {command}"


def _folder(summary: RunSummary) -> str:
    """The quoted path of the results folder."""
    return shlex.quote(str(summary.results.parent))


def _passed_text(summary: RunSummary) -> str:
    """The mean score, and the threshold if there is one."""
    mean = f"mean score {format_score(summary.total.mean_score)}"
    return mean if summary.threshold is None else f"{mean}, threshold {summary.threshold}"
