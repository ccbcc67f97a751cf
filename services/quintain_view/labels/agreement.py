"""How far a grader agrees with people's labels: Cohen's kappa (https://doi.org/10.1177/001316446002000104). No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of a grader with labels: how many answers have both, on how many they agree, and kappa.

    ``kappa`` is 1 for full agreement and 0 for as much as chance gives; None where both gave one
    and the same verdict to all, so that chance alone explains the agreement.
    """

    grader: str
    labeled: int
    agreed: int
    kappa: float | None


def agreement(grader: str, verdicts: Iterable[tuple[bool, bool]]) -> Agreement:
    """The agreement over pairs of a label and the grader's own pass.

    Example::

        agreement("judge", [(True, True), (False, True)]).agreed  # 1
    """
    pairs = list(verdicts)
    agreed = sum(label == verdict for label, verdict in pairs)
    return Agreement(grader, len(pairs), agreed, _kappa(pairs, agreed))


def _kappa(pairs: list[tuple[bool, bool]], agreed: int) -> float | None:
    if not pairs:
        return None
    label_share = sum(label for label, _ in pairs) / len(pairs)
    verdict_share = sum(verdict for _, verdict in pairs) / len(pairs)
    by_chance = label_share * verdict_share + (1 - label_share) * (1 - verdict_share)
    return None if by_chance == 1 else (agreed / len(pairs) - by_chance) / (1 - by_chance)
