"""Tells the equal requests of a run from each other, so that each has an answer of its own. No I/O."""

from __future__ import annotations

from collections import Counter

from quintain.graders import Case
from quintain_runner.plan.changes import input_fingerprint
from quintain_runner.plan.conversation import TrialConversation
from quintain_runner.results.store import KeyHashSet, key_hash


def first_request(case: Case) -> str:
    """Return the hash of what a trial of a case asks first, whatever its target is."""
    if not case.is_conversation:
        return input_fingerprint(case)
    begun = TrialConversation(case)
    if begun.asks_user:
        return input_fingerprint(case.model_copy(update={"turns": None}))
    said = begun.messages(begun.next_question)
    return input_fingerprint(case.model_copy(update={"question": None, "messages": said, "turns": None, "user": None}))


class Occurrences:
    """Which of the cases, each under each prompt, that ask the same first each one is, in the order of the dataset.

    It takes 8 bytes for each, and more for those that are not the first.
    """

    def __init__(self) -> None:
        self._seen, self._counts, self._later = KeyHashSet(), Counter[int](), dict[int, int]()

    def add(self, case: Case, prompt: str | None) -> None:
        """Count a case as it is asked under a prompt."""
        if (asked := key_hash(first_request(case))) in self._seen:
            self._counts[asked] += 1
            self._later[key_hash(case.id, prompt or "")] = self._counts[asked] + 1
        else:
            self._seen.add(asked)

    def number(self, case: Case, prompt: str | None) -> int:
        """Return the number of a case under a prompt among those that ask the same first, from 1."""
        return self._later.get(key_hash(case.id, prompt or ""), 1) if self._later else 1
