"""What a report says below its tables: of money, of calls, and of what could not be done. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from quintain_runner.report.summary import ColumnTotals, RunSummary, RunTotals
from quintain_runner.results.bill import Bill, CallRole, cost_line, dollars, held_line, tries_line
from quintain_runner.untrusted import plain_line


def account_lines(total: RunTotals, columns: Mapping[str, ColumnTotals], bill: Bill | None) -> list[str]:
    """What a report says below its tables of money, requests, calls and answers that were cut, a line each."""
    money = (cost_line(bill), held_line(bill), tries_line(bill))
    lines = (*money, saved_note(total), unaccounted_calls_note(total, bill), lost_turns_note(total))
    return [*(line for line in lines if line is not None), *_cut_notes(columns)]


def saved_note(total: RunTotals) -> str | None:
    """A sentence about the answers that the cache had; None where it had none."""
    if not total.cached:
        return None
    saved = f", {dollars(total.saved_usd)} saved" if total.saved_usd else ""
    return f"{total.cached:,} {'answer' if total.cached == 1 else 'answers'} from the cache{saved}"


def _cut_notes(columns: Mapping[str, ColumnTotals]) -> Iterator[str]:
    """A sentence about the answers of each target that ended at a limit of tokens."""
    cut = Counter[str]()
    for name, column in columns.items():
        cut[column.target or name] += column.cut
    for target, count in (+cut).items():
        answers = "1 answer was" if count == 1 else f"{count:,} answers were"
        yield f"{target}: {answers} cut at max_tokens; raise max_tokens of the target, or ask for less"


def unaccounted_calls_note(total: RunTotals, bill: Bill | None) -> str | None:
    """A sentence about the calls that are in no row, or None if every call is in one."""
    if not total.calls_without_row:
        return None
    made = None if bill is None else bill.roles.get(CallRole.AGENT)
    by_agents = min(total.calls_without_row, 0 if made is None else made.calls)
    reasons = [f"{by_agents} were made by agents for their answers"] if by_agents else []
    if total.calls_without_row > by_agents:
        reasons.append(
            "rows that a change took out had some, graders that were killed after a call were started again, and calls "
            "that waited when the run ended may have been answered"
        )
    return f"{total.calls_without_row} of {total.calls} calls are in no row: {'; '.join(reasons)}"


def lost_turns_note(total: RunTotals) -> str | None:
    """A sentence about the turns of conversations that were lost; None where none was."""
    if not (lost := total.lost_turns):
        return None
    turns = "1 turn of a conversation was" if lost == 1 else f"{lost:,} turns of conversations were"
    return f"{turns} lost with the worker that held it, and asked again from the first turn; their calls count"


def parked_target_notes(summary: RunSummary) -> list[str]:
    """A line for each parked target: why, and its last fault's code and words."""
    return [
        plain_line(f"parked {name} after {target.reason}; the last: {target.code}: {target.error}", max_length=1000)
        for name, target in summary.parked_targets.items()
    ]
