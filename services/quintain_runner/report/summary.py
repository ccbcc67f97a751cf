"""The summary of a run: its counts, its exit code, and the sentences that explain them. No I/O."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from fractions import Fraction
from pathlib import Path

from quintain.contracts.message import Message
from quintain_runner.report.progress import ProgressState
from quintain_runner.results.counts import RowTally
from quintain_runner.results.row import TARGET_CHANGED, split_column
from quintain_runner.statistics.analysis import format_score
from quintain_runner.untrusted import plain_line

#: A mean at most this far below the threshold still passes: the difference is a rounding error.
_ROUNDING = 1e-9

JsonNumbers = dict[str, int | float | dict[str, int] | None]


class ExitCode(IntEnum):
    """The exit codes of ``quintain run``."""

    PASSED = 0
    ERRORS = 1
    BELOW_THRESHOLD = 3
    BUDGET_SPENT = 4


class ParkedTarget(Message):
    """Why a target was parked (no more of its trials are begun): ``code`` and ``error`` are of the last error."""

    reason: str
    code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCounts:
    """The counts of one target, or of all targets. ``trials`` is the number of rows that the complete run has."""

    trials: int
    graded: int
    passed: int
    errors: int
    in_doubt: int
    mean_score: float | None
    calls: int
    input_tokens: int
    output_tokens: int
    #: The number of rows that count although what made them changed.
    stale: int = 0

    @property
    def waiting(self) -> int:
        """The number of trials without a row."""
        return self.trials - self.graded - self.errors - self.in_doubt

    def to_wire(self) -> JsonNumbers:
        """The JSON form in ``run.json``."""
        return {
            "trials": self.trials,
            "graded": self.graded,
            "passed": self.passed,
            "errors": self.errors,
            "inDoubt": self.in_doubt,
            "waiting": self.waiting,
            "stale": self.stale,
            "meanScore": self.mean_score,
            "calls": self.calls,
            "tokenUsage": {"input": self.input_tokens, "output": self.output_tokens},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The outcome of a run. ``calls`` are those of all its sessions in the ledger; ``max_calls`` bounds its plan, and
    ``calls_of_earlier_plans`` of the calls are not counted against it.

    ``per_target`` are the counts of each column: of each target, under each prompt.
    ``calls_without_row`` of these calls are in no row, because a grader or the run was killed before its row was
    written. ``calls_made_twice`` are calls that two workers were granted, because the first was lost before it had an
    answer: their provider may have counted both. ``has_open_trials`` says whether the same command would execute any
    trial. ``estimated_calls_left`` is the estimate for the trials that it would execute. ``parked_targets`` are the
    targets of which no more trials were begun because of errors, each with the reason. ``unavailable_graders`` could
    not be run, each with the reason: their verdicts are kept, and trials that need a new one wait.
    ``spent_parent`` is the id of the session on whose budget the run draws, if its calls are what lacks.
    ``different_seconds`` says of the targets that workers served differently when the command began, how long they had.
    """

    cases: int
    per_target: dict[str, TrialCounts]
    total: TrialCounts
    calls: int
    max_calls: int
    calls_of_earlier_plans: int = 0
    calls_without_row: int = 0
    calls_made_twice: int = 0
    has_open_trials: bool = False
    estimated_calls_left: int = 0
    threshold: float | None
    is_budget_spent: bool
    parked_targets: Mapping[str, ParkedTarget] = field(default_factory=dict)
    unavailable_graders: Mapping[str, str] = field(default_factory=dict)
    different_seconds: Mapping[str, float] = field(default_factory=dict)
    spent_parent: str | None = None
    results: Path

    @property
    def plan_calls(self) -> int:
        """The calls that are counted against ``max_calls``."""
        return self.calls - self.calls_of_earlier_plans

    @property
    def exit_code(self) -> ExitCode:
        """The exit code: the first that applies of budget spent, errors, below the threshold, and passed."""
        if self.is_budget_spent:
            return ExitCode.BUDGET_SPENT
        is_unfinished = self.unavailable_graders and self.total.waiting
        if self.total.errors or self.total.in_doubt or self.parked_targets or is_unfinished:
            return ExitCode.ERRORS
        mean = self.total.mean_score
        if self.threshold is not None and (mean is None or mean < self.threshold - _ROUNDING):
            return ExitCode.BELOW_THRESHOLD
        return ExitCode.PASSED

    def to_wire(self) -> dict[str, object]:
        """The JSON form in ``run.json`` and of ``--json``."""
        totals = {"cases": self.cases, **self.total.to_wire(), "calls": self.calls, "maxCalls": self.max_calls}
        optional_totals = {
            "callsOfEarlierPlans": self.calls_of_earlier_plans,
            "callsWithoutRow": self.calls_without_row,
            "callsMadeTwice": self.calls_made_twice,
        }
        totals |= {name: count for name, count in optional_totals.items() if count}
        if self.is_budget_spent:
            totals["callsLeft"] = self.estimated_calls_left
        targets = {
            name: {**_names(name), "cases": self.cases, **counts.to_wire()} for name, counts in self.per_target.items()
        }
        parked = {name: target.model_dump(by_alias=True) for name, target in self.parked_targets.items()}
        optional: dict[str, object] = {"parkedTargets": parked} if parked else {}
        if self.different_seconds:
            optional["differentSeconds"] = dict(self.different_seconds)
        if self.unavailable_graders:
            optional["unavailableGraders"] = dict(self.unavailable_graders)
        return {"exitCode": int(self.exit_code), "totals": totals, "targets": targets, **optional}


def _names(column: str) -> dict[str, str]:
    """The target and the prompt of a column; nothing if there are no prompts, as its name is the target's then."""
    target, prompt = split_column(column)
    return {} if prompt is None else {"target": target, "prompt": prompt}


def summarize(
    progress_state: ProgressState,
    *,
    threshold: float | None,
    is_budget_spent: bool,
    results: Path,
    calls_made_twice: int = 0,
    parked_targets: Mapping[str, ParkedTarget] | None = None,
) -> RunSummary:
    """Summarize the state of a run.

    ``threshold`` is the lowest mean score that passes, ``is_budget_spent`` says whether the run stopped for lack of
    budget, ``calls_made_twice`` how many calls two workers were granted, and ``results`` is the path of the rows.
    """
    tallies, budget = list(progress_state.tallies.values()), progress_state.budget
    calls = budget.calls + budget.calls_of_earlier_plans
    return RunSummary(
        cases=progress_state.cases,
        per_target={name: _trial_counts([tally]) for name, tally in progress_state.tallies.items()},
        total=_trial_counts(tallies),
        calls=calls,
        max_calls=budget.max_calls,
        calls_of_earlier_plans=budget.calls_of_earlier_plans,
        calls_without_row=max(0, calls - progress_state.calls_in_rows),
        calls_made_twice=calls_made_twice,
        estimated_calls_left=progress_state.estimated_calls_left,
        threshold=threshold,
        is_budget_spent=is_budget_spent,
        parked_targets=parked_targets or {},
        results=results,
    )


def _trial_counts(tallies: Sequence[RowTally]) -> TrialCounts:
    """The sum of the counts of several targets."""
    graded = sum(tally.graded for tally in tallies)
    score = sum((tally.score_sum for tally in tallies), Fraction())
    return TrialCounts(
        trials=sum(tally.trials for tally in tallies),
        graded=graded,
        passed=sum(tally.passed for tally in tallies),
        errors=sum(tally.errors for tally in tallies),
        in_doubt=sum(tally.in_doubt for tally in tallies),
        mean_score=float(score / graded) if graded else None,
        calls=sum(tally.calls for tally in tallies),
        input_tokens=sum(tally.input_tokens for tally in tallies),
        output_tokens=sum(tally.output_tokens for tally in tallies),
        stale=sum(tally.stale for tally in tallies),
    )


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
