"""What a budget is for: everything that the trials of a run are made of. No I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from pydantic import Field

from quintain.contracts.message import Message
from quintain.graders import Case
from quintain_runner.plan.changes import RunFingerprints, grading_fingerprint, input_fingerprint
from quintain_runner.results.row_index import key_hash


class PlanIdentity(Message):
    """The identity of a plan: a plan with another one has another budget.

    ``trials`` is a hash of the cases (in any order), the prompts, the repeats, and how often the run was graded again
    on purpose; ``targets`` are hashes of each target's fingerprint and of its graders', None where they are not known.
    """

    trials: str
    targets: dict[str, str | None] = Field(default_factory=dict)

    def is_changed_from(self, earlier: PlanIdentity) -> bool:
        """Whether trials were added or changed since. What is not known, then or now, is no change."""
        return self.trials != earlier.trials or any(
            one is not None and earlier.targets.get(name, "") not in (None, one) for name, one in self.targets.items()
        )

    def with_known_targets_of(self, earlier: PlanIdentity) -> PlanIdentity:
        """The identity, with what was known earlier of targets that are not known now."""
        known = {name: one or earlier.targets.get(name) for name, one in self.targets.items()}
        return PlanIdentity(trials=self.trials, targets=known)


class PlanIdentityBuilder:
    """Collects what is asked and compared in a plan, in any order and in constant memory."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, case: Case, prompt: str | None) -> None:
        """Add a case as it is asked under a prompt."""
        self._sum += key_hash(case.id, prompt or "", input_fingerprint(case), grading_fingerprint(case))

    def build(self, targets: Sequence[str], repeats: int, fingerprints: RunFingerprints) -> PlanIdentity:
        """The identity of everything that was added, for these targets. Those without a place in ``fingerprints`` are
        not known now.
        """
        return PlanIdentity(
            trials=_sha256([self._sum, repeats, fingerprints.generation]),
            targets={
                name: _sha256([fingerprints.targets[name], _sorted(fingerprints.graders_of(name))])
                if name in fingerprints.targets
                else None
                for name in targets
            },
        )


def _sorted(fingerprints: Mapping[str, str | None]) -> list[tuple[str, str | None]]:
    return sorted(fingerprints.items(), key=lambda item: item[0])


def _sha256(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
