"""Which cases of a run are in a file: all of a small run; of a large one those that a reader looks for first."""

from __future__ import annotations

from dataclasses import dataclass, field

from quintain_view.index.filters import SortOrder, TrialFilter, TrialState
from quintain_view.index.reader import CaseEntry, IndexReader

#: A run with at most so many cases is in the file as a whole, if its rows have at most so many bytes.
MAX_CASES, MAX_BYTES = 300, 8_000_000

#: Of a larger run: the first that failed or erred, the most disputed, and a sample of all.
FAILED_CASES, DISPUTED_CASES, SAMPLED_CASES = 60, 30, 30

#: Of a larger run, a case whose rows have more bytes than this is left out.
MAX_CASE_BYTES = 400_000


@dataclass(frozen=True, slots=True)
class ReportedCases:
    """The cases in the file, in the order of the results, and how many there are in all."""

    cases: list[CaseEntry] = field(default_factory=list)
    total: int = 0

    def note(self, folder: str) -> str:
        """What is left out, and where it is; empty if nothing is."""
        if len(self.cases) == self.total:
            return ""
        return (
            f"This file has {len(self.cases)} of {self.total:,} cases: the first that failed or erred, those on which "
            f"graders disagree most, and a sample of all. quintain view {folder} shows every one."
        )


def select_cases(index: IndexReader) -> ReportedCases:
    """The cases of a run that go into a file."""
    everything = TrialFilter()
    total = index.count_cases(everything)
    first = index.list_cases(everything, offset=0, limit=MAX_CASES + 1)
    if total <= MAX_CASES and sum(_size(index, case) for case in first) <= MAX_BYTES:
        return ReportedCases(first, total)
    failed = TrialFilter(states=(TrialState.FAILED, TrialState.ERROR))
    chosen = [
        *index.list_cases(failed, offset=0, limit=FAILED_CASES),
        *index.list_cases(TrialFilter(order=SortOrder.DISAGREEMENT), offset=0, limit=DISPUTED_CASES),
        *(index.case(1 + number * total // SAMPLED_CASES) for number in range(min(SAMPLED_CASES, total))),
    ]
    kept, size = [], 0
    for case in dict.fromkeys(chosen):
        case_size = _size(index, case)
        if case_size <= MAX_CASE_BYTES and size + case_size <= MAX_BYTES:
            kept.append(case)
            size += case_size
    return ReportedCases(sorted(kept), total)


def _size(index: IndexReader, case: CaseEntry) -> int:
    return sum(trial.length for trial in index.trials_of(case.case_no))
