"""How far a judge agrees with people's labels: agreement, Cohen's kappa, precision and recall of "fail". No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from pydantic import Field

from quintain.contracts.message import Message
from quintain_runner.results.answer import is_none
from quintain_runner.statistics.inference import Clusters, Floats, Interval, bootstrap_interval, share_interval
from quintain_runner.statistics.significance import Difference, differences_of


class LabeledVerdict(NamedTuple):
    """A person's label of one answer to a case, and a judge's verdict on it: whether each says that it passes."""

    case_id: str
    label: bool
    verdict: bool


class Rate(Message):
    """A statistic of labels and verdicts, with its 95 % interval.

    ``value`` is None where it is not defined, such as the precision of a judge that never said "fail". ``interval`` is
    None where it has no value, and of a kappa that is the same whichever cases are drawn.
    """

    value: float | None = None
    interval: Interval | None = Field(default=None, exclude_if=is_none)


class LabelAgreement(Message):
    """The agreement of one judge with labels.

    ``labels`` answers of ``cases`` cases have a label and a verdict. ``kappa`` is 1 for full agreement and 0 for as
    much as chance gives. ``fail_precision`` is the share of "fail" among the labels of answers that the judge failed,
    ``fail_recall`` the share that the judge failed of the answers that are labeled "fail".
    """

    labels: int = 0
    cases: int = 0
    agreement: Rate = Rate()
    kappa: Rate = Rate()
    fail_precision: Rate = Rate()
    fail_recall: Rate = Rate()


def label_agreement(verdicts: Iterable[LabeledVerdict]) -> LabelAgreement:
    """The agreement over labels and verdicts: the interval of kappa by a bootstrap over cases, others as of pass rates.

    Example::

        label_agreement([LabeledVerdict("1", True, True), LabeledVerdict("2", False, True)]).agreement.value  # 0.5
    """
    counts = _counts_by_case(verdicts)
    if not len(counts):
        return LabelAgreement()
    agreed, failed = counts[:, _PASS_PASS] + counts[:, _FAIL_FAIL], counts[:, _FAIL_FAIL]
    return LabelAgreement(
        labels=int(counts.sum()),
        cases=len(counts),
        agreement=_share(agreed, counts.sum(axis=1)),
        kappa=_kappa_rate(counts),
        fail_precision=_share(failed, failed + counts[:, _PASS_FAIL]),
        fail_recall=_share(failed, failed + counts[:, _FAIL_PASS]),
    )


#: The columns of a table of counts: what the label says, and what the verdict says.
_PASS_PASS, _PASS_FAIL, _FAIL_PASS, _FAIL_FAIL = range(4)


def _counts_by_case(verdicts: Iterable[LabeledVerdict]) -> Floats:
    """A row of counts for each case."""
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for case_id, label, verdict in verdicts:
        counts[case_id][2 * (not label) + (not verdict)] += 1
    return np.array(list(counts.values()), dtype=np.float64).reshape(len(counts), 4)


def _share(parts: Floats, wholes: Floats) -> Rate:
    """The share of these parts by case, with the interval of a pass rate."""
    counted = wholes > 0
    if not counted.any():
        return Rate()
    clusters = Clusters(parts[counted], wholes[counted])
    return Rate(value=clusters.mean, interval=share_interval(clusters))


def _kappa_rate(counts: Floats) -> Rate:
    value = float(_kappa(counts.sum(axis=0, keepdims=True))[0])
    return Rate() if np.isnan(value) else Rate(value=value, interval=bootstrap_interval(counts, _kappa))


def _ratio(part: Floats, whole: Floats) -> Floats:
    ratio: Floats = np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole != 0)
    return ratio


def _kappa(tables: Floats) -> Floats:
    """Cohen's kappa of each table: (p_o - p_e) / (1 - p_e), not defined where chance alone gives full agreement.

    Source: J. Cohen, "A coefficient of agreement for nominal scales", Educational and Psychological Measurement 20
    (1960).
    """
    count = tables.sum(axis=1)
    label = _ratio(tables[:, _PASS_PASS] + tables[:, _PASS_FAIL], count)
    verdict = _ratio(tables[:, _PASS_PASS] + tables[:, _FAIL_PASS], count)
    agreed = _ratio(tables[:, _PASS_PASS] + tables[:, _FAIL_FAIL], count)
    by_chance = label * verdict + (1 - label) * (1 - verdict)
    return _ratio(agreed - by_chance, 1 - by_chance)


class JudgePair(NamedTuple):
    """A label of an answer to a case, and the verdicts of two judges on that answer."""

    case_id: str
    label: bool
    first: bool
    second: bool


def agreement_differences(comparisons: Sequence[Sequence[JudgePair]]) -> list[Difference | None]:
    """How much more often the first judge of each pair agrees with the labels than the second; None without labels.

    The p-values come from a sign-flip test over cases, adjusted by Holm's method for the number of pairs.
    """
    present = iter(differences_of([_agreement_by_case(pairs) for pairs in comparisons if pairs]))
    return [next(present) if pairs else None for pairs in comparisons]


def _agreement_by_case(pairs: Sequence[JudgePair]) -> tuple[Clusters, float]:
    """The differences of agreement by case, and the second judge's agreement."""
    cases, index = np.unique([pair.case_id for pair in pairs], return_inverse=True)
    first = np.array([pair.first == pair.label for pair in pairs], dtype=np.float64)
    second = np.array([pair.second == pair.label for pair in pairs], dtype=np.float64)
    rows = np.bincount(index, minlength=len(cases)).astype(np.float64)
    sums: Floats = np.bincount(index, weights=first - second, minlength=len(cases)).astype(np.float64)
    return Clusters(sums, rows), float(second.mean())
