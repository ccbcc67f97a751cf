"""The trials of a run: every case, target and repeat that has no stored row yet. No I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.results.resume_state import ResumeState
from quintain_runner.results.row import RowKey, RowStats, RowStatus
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import max_calls_of
from quintain_runner.spec.validation_errors import suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One case asked of one target once. ``repeat`` counts from 1; ``previous`` is what its latest row left, if any;
    ``answered_at`` is when its answer came, if it came just now and not from the ledger."""

    case: Case
    target: str
    repeat: int
    previous: RowStats | None = None
    answered_at: datetime | None = None

    @property
    def key(self) -> RowKey:
        """What its row is of."""
        return RowKey(self.case.id, self.target, self.repeat)

    @property
    def tries(self) -> int:
        """The number of this try, from 1.

        Where the target answered and a grader failed it is the same call again: the ledger answers it, uncharged.
        """
        if self.previous is None:
            return 1
        return self.previous.tries if self.previous.answered else self.previous.tries + 1

    @property
    def request_id(self) -> str:
        """The call's id, made of what it asks: after a crash it is the same call, and charged once."""
        name = json.dumps([*self.key, self.tries], ensure_ascii=True)
        return f"run-{hashlib.sha256(name.encode()).hexdigest()}"

    @property
    def request(self) -> InvokeRequest:
        """What the target is asked."""
        return InvokeRequest(
            question=self.case.question,
            messages=self.case.messages,
            system_prompt=self.case.system_prompt,
            target=self.target,
            eval_case_id=self.case.id,
            attempt=self.repeat,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunPolicy:
    """Which ungraded rows are asked again, under a new request id and a new charge."""

    rerun_errors: bool = True
    rerun_in_doubt: bool = False

    def should_rerun(self, previous: RowStats) -> bool:
        """Whether the trial that left this is to be tried once more."""
        return self.rerun_errors if previous.status is RowStatus.ERROR else self.rerun_in_doubt


def pending_trials(
    cases: Iterable[Case], target: str, *, repeats: int, resume_state: ResumeState, rerun_policy: RerunPolicy
) -> Iterator[Trial]:
    """Every trial of a target that has no kept row, in the dataset's order."""
    for case in cases:
        for repeat in range(1, repeats + 1):
            key = RowKey(case.id, target, repeat)
            if resume_state.is_graded(key):
                continue
            previous = resume_state.ungraded_row(key)
            if previous is None or rerun_policy.should_rerun(previous):
                yield Trial(case=case, target=target, repeat=repeat, previous=previous)


def choose_targets(evaluation: Evaluation, configured: Sequence[str], only: Sequence[str] = ()) -> tuple[str, ...]:
    """The systems under test: the file's, narrowed to ``only``; where it names none, the only one configured.

    Raises `ConfigError` where that leaves none, or a name is not known.
    """
    allowed = evaluation.spec.targets or list(configured)
    chosen = list(only) or evaluation.spec.targets or (list(configured) if len(configured) == 1 else [])
    if not chosen:
        raise ConfigError(
            f"{evaluation.path}: it names no targets, and {len(configured)} are configured "
            f"({', '.join(configured)}); add targets: [...] or give --target"
        )
    for name in chosen:
        if name not in allowed or name not in configured:
            known = configured if name in allowed else [target for target in allowed if target in configured]
            raise ConfigError(f"{evaluation.path}: unknown target {name!r}{suggestion(name, known)}")
    return tuple(dict.fromkeys(chosen))


def max_calls_per_trial(evaluation: Evaluation) -> int:
    """What one trial may cost at most, in calls: the answer, and every grader's limit."""
    return 1 + sum(max_calls_of(grader) for grader in evaluation.spec.graders)


def check_targets_available(target_references: Iterable[tuple[str, str]], available: Sequence[str]) -> None:
    """Refuse a target that the session cannot call before any call is spent on it.

    ``target_references`` are pairs of a place and the target it names. Raises `ConfigError`.
    """
    errors = [
        f"{where}: unknown target {name!r}{suggestion(name, available)}"
        for where, name in target_references
        if name not in available
    ]
    if errors:
        raise ConfigError("\n".join(dict.fromkeys(errors)))
