"""The summary of a run: its counts, its exit code, and the sentences that explain them. No I/O."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, SerializerFunctionWrapHandler, computed_field, model_serializer

from quintain.contracts.invoke import NO_TOKENS, TokenUsage
from quintain.contracts.message import Message
from quintain_runner.report.progress import ProgressState
from quintain_runner.results.answer import is_zero
from quintain_runner.results.bill import dollars
from quintain_runner.results.counts import RowTally
from quintain_runner.results.row import TARGET_CHANGED, split_column
from quintain_runner.statistics.analysis import format_score
from quintain_runner.untrusted import plain_line

#: A mean at most this far below the threshold still passes: the difference is a rounding error.
_ROUNDING = 1e-9


class ExitCode(IntEnum):
    """The exit codes of ``quintain run``."""

    PASSED = 0
    ERRORS = 1
    BELOW_THRESHOLD = 3
    BUDGET_SPENT = 4


class Gate(Message):
    """What became of a condition on the results: ``value`` is what was measured, None where there is nothing, and
    ``least`` the lowest that passes; both are None of a comparison. ``text`` says it in a clause.
    """

    name: str
    passed: bool
    text: str
    value: float | None = None
    least: float | None = None

    @classmethod
    def of(cls, name: str, value: float | None, least: float) -> Gate:
        """The gate of a measured value."""
        passed = value is not None and value >= least - _ROUNDING
        told = f"is below the threshold {least}" if not passed else f"threshold {least}"
        text = f"{name} {format_score(value)}{',' if passed else ''} {told}"
        return cls(name=name, passed=passed, text=text, value=value, least=least)


class ParkedTarget(Message):
    """Why a target was parked (no more of its trials are begun): ``code`` and ``error`` are of the last error.

    ``setting`` is what would have let the run go on, if there is such an option.
    """

    reason: str
    code: str
    error: str
    setting: str | None = None


class TrialCounts(Message):
    """The counts of one target, or of all targets. ``trials`` is the number of rows that the complete run has. Of
    the graded rows ``tied`` are neither passed nor failed
    by a jury, and ``lacks_votes`` have a verdict without all votes of one. Answers of ``cut`` rows ended at a limit
    of tokens, and those of ``unscored`` ones are not compared yet. ``cached`` answers were in the cache, and cost
    ``saved_usd`` US dollars when they were given.
    """

    trials: int = 0
    graded: int = 0
    passed: int = 0
    errors: int = 0
    in_doubt: int = 0
    tied: int = Field(default=0, exclude_if=is_zero)
    lacks_votes: int = Field(default=0, exclude_if=is_zero)
    cut: int = Field(default=0, exclude_if=is_zero)
    unscored: int = Field(default=0, exclude_if=is_zero)
    cached: int = Field(default=0, exclude_if=is_zero)
    saved_usd: float = Field(default=0, exclude_if=is_zero)
    mean_score: float | None = None
    calls: int = 0
    token_usage: TokenUsage = NO_TOKENS

    @computed_field  # type: ignore[prop-decorator]
    @property
    def waiting(self) -> int:
        """The number of trials without a row."""
        return self.trials - self.graded - self.errors - self.in_doubt - self.unscored

    @model_serializer(mode="wrap")
    def _with_null_mean(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {"meanScore": None, **serialize(self)}


class ColumnTotals(TrialCounts):
    """The counts of one column; ``target`` and ``prompt`` are None without prompts: its name is the target's then."""

    cases: int = 0
    target: str | None = None
    prompt: str | None = None


class RunTotals(TrialCounts):
    """The counts of a whole run. ``calls`` are those of all its sessions in the ledger, which ``max_calls`` bounds.

    ``lost_turns`` of conversations were lost with the workers that held them, and asked again. ``uncompared`` rows lack
    a comparison that the last command was to make. ``calls_without_row`` of the calls are in no row: agents made them,
    or a grader or the run was killed before its row was written. ``calls_left`` is the estimate for the trials that the
    same command would execute; ``run.json`` has it if the budget is spent.
    """

    cases: int = 0
    max_calls: int = 0
    calls_without_row: int = Field(default=0, exclude_if=is_zero)
    lost_turns: int = Field(default=0, exclude_if=is_zero)
    uncompared: int = Field(default=0, exclude_if=is_zero)
    calls_left: int = Field(default=0, exclude_if=is_zero)


class CostLimit(NamedTuple):
    """The limit of a run in US dollars, and what of it is spent or held for tries whose bill is unknown.

    ``usd`` is None where the limit is that of the session ``parent_id``, on which the run draws. ``is_soft``: some
    tries were reserved by an estimate, and may cost more.
    """

    usd: float | None
    most_usd: float
    parent_id: str | None = None
    is_soft: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The outcome of a run, from which all tables and files are made.

    ``per_target`` are the counts of each column: of each target, under each prompt. ``has_open_trials`` says whether
    the same command would execute any trial. ``parked_targets`` are the targets of which no more trials were begun
    because of errors, each with the reason. ``spent_parent`` is the id of the session on whose budget
    the run draws, if its calls are what lacks. ``cost_limit`` is set if money is what lacks, and
    ``next_row_usd`` is the most that the next trial can cost, which did not begin because of that. ``row_costs_usd``
    is that of each target.
    ``other_gates`` are those beside the ``threshold``, which is the lowest mean score.
    ``different_seconds`` says of the targets that workers served differently when the command began, how long they had.
    """

    total: RunTotals
    per_target: Mapping[str, ColumnTotals]
    threshold: float | None
    is_budget_spent: bool
    results: Path
    has_open_trials: bool = False
    parked_targets: Mapping[str, ParkedTarget] = field(default_factory=dict)
    different_seconds: Mapping[str, float] = field(default_factory=dict)
    other_gates: Sequence[Gate] = ()
    spent_parent: str | None = None
    cost_limit: CostLimit | None = None
    next_row_usd: float | None = None
    row_costs_usd: Mapping[str, float] = field(default_factory=dict)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code: the first that applies of budget spent, errors, below the threshold, and passed."""
        if self.is_budget_spent:
            return ExitCode.BUDGET_SPENT
        if self.total.errors or self.total.in_doubt or self.parked_targets:
            return ExitCode.ERRORS
        return ExitCode.PASSED if all(gate.passed for gate in self.gates) else ExitCode.BELOW_THRESHOLD

    @property
    def gates(self) -> list[Gate]:
        """What became of all conditions, the mean score first."""
        score = [] if self.threshold is None else [Gate.of("mean score", self.total.mean_score, self.threshold)]
        return [*score, *self.other_gates]

    @property
    def missed(self) -> str:
        """The conditions that do not hold, a clause each."""
        return "; ".join(gate.text for gate in self.gates if not gate.passed)


def summarize(
    progress_state: ProgressState,
    *,
    threshold: float | None,
    is_budget_spent: bool,
    results: Path,
    parked_targets: Mapping[str, ParkedTarget] | None = None,
) -> RunSummary:
    """Summarize the state of a run.

    ``threshold`` is the lowest mean score that passes, ``is_budget_spent`` says whether the run stopped for lack of
    budget, and ``results`` is the path of the rows.
    """
    tallies, budget, cases = progress_state.tallies, progress_state.budget, progress_state.cases
    counts = {
        **_counts(list(tallies.values())),
        "cases": cases,
        "calls": budget.calls,
        "max_calls": budget.max_calls,
        "calls_without_row": max(0, budget.calls - progress_state.calls_in_rows),
        "uncompared": progress_state.rows_to_compare - progress_state.compared_rows,
        "lost_turns": sum(tally.lost_turns for tally in tallies.values()),
        "calls_left": progress_state.estimated_calls_left,
    }
    columns: dict[str, ColumnTotals] = {}
    for name, tally in tallies.items():
        target, prompt = split_column(name)
        names = {} if prompt is None else {"target": target, "prompt": prompt}
        columns[name] = ColumnTotals.model_validate({**_counts([tally]), **names, "cases": cases})
    return RunSummary(
        total=RunTotals.model_validate(counts),
        per_target=columns,
        threshold=threshold,
        is_budget_spent=is_budget_spent,
        parked_targets=parked_targets or {},
        results=results,
    )


def _counts(tallies: Sequence[RowTally]) -> dict[str, object]:
    """The sum of the counts of several columns, by the names of `TrialCounts`."""
    names = TrialCounts.model_fields.keys() - {"mean_score", "token_usage"}
    counts: dict[str, object] = {name: sum(getattr(tally, name) for tally in tallies) for name in names}
    scored = sum(tally.scored for tally in tallies)
    score = sum((tally.score_sum for tally in tallies), Fraction())
    tokens = (sum(tally.input_tokens for tally in tallies), sum(tally.output_tokens for tally in tallies))
    usage = TokenUsage(input=tokens[0], output=tokens[1])
    return {**counts, "mean_score": float(score / scored) if scored else None, "token_usage": usage}


#: The budget option in a command, which is replaced by a larger one.
_BUDGET_OPTION = re.compile(r" --max-(?:calls|cost-usd)[ =]\S+")


def exit_line(summary: RunSummary, command: str) -> str:
    """The exit code, its reason, and the next useful command; ``command`` is the command line that the user gave."""
    command = _BUDGET_OPTION.sub("", command) if summary.is_budget_spent else command
    code = summary.exit_code
    reasons = {
        ExitCode.BUDGET_SPENT: _spent_text(summary, command),
        ExitCode.ERRORS: _errors_text(summary, command),
        ExitCode.BELOW_THRESHOLD: f"{summary.missed}. To read what failed: quintain view {_folder(summary)}",
        ExitCode.PASSED: f"{_passed_text(summary)}. To read every answer: quintain view {_folder(summary)}",
    }[code]
    return plain_line(f"exit {int(code)}: {reasons}", max_length=1000)


def budget_to_finish(summary: RunSummary) -> int:
    """The ``max_calls`` with which the remaining trials can be executed too."""
    return summary.total.calls + max(1, summary.total.calls_left)


def _open_trials_text(total: RunTotals) -> str:
    """The numbers of pending and failed trials, and of those in doubt."""
    erred = f" and {total.errors} erred" if total.errors else ""
    once_more = "their calls may have been charged: asked again only with --in-doubt retry"
    in_doubt = f" and {total.in_doubt} in doubt ({once_more})" if total.in_doubt else ""
    uncompared = f" and {total.uncompared} rows are not yet compared" if total.uncompared else ""
    return f"{total.waiting} trials wait{erred}{in_doubt}{uncompared},"


def _spent_text(summary: RunSummary, command: str) -> str:
    """The reason and the next command of a run whose budget is spent, or that of the session on which it draws."""
    total = summary.total
    needed, spent = budget_to_finish(summary), f"{total.calls} of {total.max_calls} calls"
    kept = f"{_open_trials_text(total)} and every row so far is kept."
    how = "by what the graded ones took" if total.graded else "at most"
    if summary.cost_limit is not None:
        return _spent_money_text(summary, summary.cost_limit, kept, command)
    if (parent := summary.spent_parent) is None:
        return (
            f"the budget is spent ({spent}), {kept} It takes {needed - total.max_calls} calls more, {how}. "
            f"To finish: {command} --max-calls {needed}"
        )
    return (
        f"session {parent}, that of QUINTAIN_SESSION_TOKEN, has too few calls left (this run made {spent}), {kept} It "
        f"takes {needed - total.calls} calls more, {how}. Once the owner of that session has raised its limit "
        f"(PATCH /sessions/{parent} with QUINTAIN_ADMIN_TOKEN), to finish: {command} --max-calls "
        f"{max(needed, total.max_calls)}"
    )


def _spent_money_text(summary: RunSummary, limit: CostLimit, kept: str, command: str) -> str:
    """The reason and the next command of a run whose money is spent."""
    next_row, most = summary.next_row_usd or 0.0, limit.most_usd
    # Rows of each target are taken to cost the same part of what they can. One that is begun must find all of that.
    last_row = max([next_row, *summary.row_costs_usd.values()])
    dearest = last_row or most
    rows = [
        (column, summary.row_costs_usd.get(column.target or name, dearest))
        for name, column in summary.per_target.items()
    ]
    graded_most = sum(column.graded * cost for column, cost in rows)
    left_most = sum((column.waiting + column.errors) * cost for column, cost in rows)
    needed = 1.05 * left_most * (most / graded_most if graded_most else 1) + last_row
    reserve = f", and the next row may cost {dollars(next_row)}" if next_row else ""
    if limit.usd is None:
        return (
            f"session {limit.parent_id}, that of QUINTAIN_SESSION_TOKEN, has too little money left (this run cost "
            f"{dollars(most)}{reserve}), {kept} It takes about {dollars(needed)} more. Once the owner of that "
            f"session has raised its limit (PATCH /sessions/{limit.parent_id} with QUINTAIN_ADMIN_TOKEN), "
            f"to finish: {command}"
        )
    enough = math.ceil(100 * max(limit.usd + next_row, most + needed)) / 100
    return (
        f"the {'soft ' if limit.is_soft else ''}limit in money is reached ({dollars(most)} of {dollars(limit.usd)} "
        f"spent or held{reserve}), {kept} "
        f"To finish: {command} --max-cost-usd {enough:.2f}"
    )


def _errors_text(summary: RunSummary, command: str) -> str:
    """The reason and the next command of a run with errors or rows in doubt."""
    total = summary.total
    if parked := summary.parked_targets:
        names, verb = ", ".join(parked), "is" if len(parked) == 1 else "are"
        is_changed = all(target.code == TARGET_CHANGED for target in parked.values())
        when = "all workers serve the same configuration" if is_changed else "the endpoint works again"
        told = next((target for target in parked.values() if target.setting is not None), next(iter(parked.values())))
        why, setting = f'{told.reason} ("{told.error}")', f"; {told.setting}" if told.setting else ""
        return (
            f"{names} {verb} parked after {why}, {_open_trials_text(total)} and every row so far is kept. When "
            f"{when}, the same command goes on{setting}: {command}"
        )
    unknown = "their calls have no answer, and may have been charged"
    in_doubt_text = f"{total.in_doubt} of {total.trials} trials are in doubt ({unknown}) and kept"
    if not total.errors:
        return f"{in_doubt_text}. To ask them once more, charged again: {command} --in-doubt retry"
    what = f"{total.errors} of {total.trials} trials erred" + (f", {in_doubt_text}" if total.in_doubt else "")
    return f"{what}. The same command again tries these once more, and asks only missing answers: {command}"


def _folder(summary: RunSummary) -> str:
    """The quoted path of the results folder."""
    return shlex.quote(str(summary.results.parent))


def _passed_text(summary: RunSummary) -> str:
    """The mean score, the threshold if there is one, and what else holds."""
    mean = f"mean score {format_score(summary.total.mean_score)}"
    score = mean if summary.threshold is None else f"{mean}, threshold {summary.threshold}"
    return "; ".join([score, *(gate.text for gate in summary.other_gates)])
