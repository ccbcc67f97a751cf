"""What to ask: each case of each target, as often as repeats says, without what is kept. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.evaluation import Evaluation
from quintain_runner.grader_specs import most_calls
from quintain_runner.kept import Kept
from quintain_runner.mistakes import nearest
from quintain_runner.rows import Key, Mark, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One case asked of one target once. ``repeat`` counts from 1; ``before`` is what its latest row left, if any;
    ``answered_at`` is when its answer came, if it came just now and not from the ledger."""

    case: Case
    target: str
    repeat: int
    before: Mark | None = None
    answered_at: datetime | None = None

    @property
    def key(self) -> Key:
        """What its row is of."""
        return Key(self.case.id, self.target, self.repeat)

    @property
    def tries(self) -> int:
        """The number of this try, from 1.

        Where the target answered and a grader failed it is the same call again: the ledger answers it, uncharged.
        """
        if self.before is None:
            return 1
        return self.before.tries if self.before.answered else self.before.tries + 1

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
class Again:
    """Which ungraded rows are asked again, under a new request id and a new charge."""

    errors: bool = True
    in_doubt: bool = False

    def asks(self, mark: Mark) -> bool:
        """Whether the trial that left this is to be tried once more."""
        return self.errors if mark.status is Status.ERROR else self.in_doubt


def trials(cases: Iterable[Case], target: str, *, repeats: int, kept: Kept, again: Again) -> Iterator[Trial]:
    """Every trial of a target that has no kept row, in the dataset's order."""
    for case in cases:
        for repeat in range(1, repeats + 1):
            key = Key(case.id, target, repeat)
            if kept.is_graded(key):
                continue
            mark = kept.mark(key)
            if mark is None or again.asks(mark):
                yield Trial(case=case, target=target, repeat=repeat, before=mark)


def choose_targets(evaluation: Evaluation, configured: Sequence[str], only: Sequence[str] = ()) -> tuple[str, ...]:
    """The systems under test: the file's, narrowed to ``only``; where it names none, the only one configured.

    Raises `ConfigError` where that leaves none, or a name is not known.
    """
    offered = evaluation.spec.targets or list(configured)
    wanted = list(only) or evaluation.spec.targets or (list(configured) if len(configured) == 1 else [])
    if not wanted:
        raise ConfigError(
            f"{evaluation.path}: it names no targets, and {len(configured)} are configured "
            f"({', '.join(configured)}); add targets: [...] or give --target"
        )
    for name in wanted:
        if name not in offered or name not in configured:
            known = configured if name in offered else [target for target in offered if target in configured]
            raise ConfigError(f"{evaluation.path}: unknown target {name!r}{nearest(name, known)}")
    return tuple(dict.fromkeys(wanted))


def most_per_trial(evaluation: Evaluation) -> int:
    """What one trial may cost at most, in calls: the answer, and every grader's limit."""
    return 1 + sum(most_calls(grader) for grader in evaluation.spec.graders)


def check_known(names: Iterable[tuple[str, str]], available: Sequence[str]) -> None:
    """Refuse a target that the session cannot call before any call is spent on it.

    ``names`` are pairs of a place and the target it names. Raises `ConfigError`.
    """
    wrong = [
        f"{where}: unknown target {name!r}{nearest(name, available)}" for where, name in names if name not in available
    ]
    if wrong:
        raise ConfigError("\n".join(dict.fromkeys(wrong)))
