"""What to ask: each case of each target, as often as repeats says, without what is kept. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError
from quintain_runner.dataset import Case
from quintain_runner.evaluation import Evaluation
from quintain_runner.mistakes import nearest
from quintain_runner.rows import Key, Mark, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One case asked of one target once. ``repeat`` and ``tries`` count from 1."""

    case: Case
    target: str
    repeat: int
    tries: int = 1

    @property
    def key(self) -> Key:
        """What its row is of."""
        return Key(self.case.id, self.target, self.repeat)

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


def trials(cases: Iterable[Case], targets: Sequence[str], *, repeats: int, kept: Mapping[Key, Mark]) -> Iterator[Trial]:
    """Every trial that has no kept row, in the dataset's order; an errored one with its next try."""
    for case in cases:
        for target in targets:
            for repeat in range(1, repeats + 1):
                mark = kept.get(Key(case.id, target, repeat))
                if mark is None or mark.status is Status.ERROR:
                    yield Trial(case=case, target=target, repeat=repeat, tries=next_try(mark))


def next_try(mark: Mark | None) -> int:
    """The number of the next try after this row, from 1.

    Where the target answered and a grader failed it is the same call again: the ledger answers it, uncharged.
    """
    if mark is None:
        return 1
    return mark.tries if mark.answered else mark.tries + 1


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


def check_known(names: Iterable[tuple[str, str]], available: Sequence[str]) -> None:
    """Refuse a target that the session cannot call before any call is spent on it.

    ``names`` are pairs of a place and the target it names. Raises `ConfigError`.
    """
    wrong = [
        f"{where}: unknown target {name!r}{nearest(name, available)}" for where, name in names if name not in available
    ]
    if wrong:
        raise ConfigError("\n".join(dict.fromkeys(wrong)))
