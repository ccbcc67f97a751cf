"""What a jury says of an answer: the verdict that its votes make, by a rule. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quintain.contracts.invoke import NO_TOKENS
from quintain_runner.graders.base import GradingResult
from quintain_runner.graders.verdict import PASS_SCORE
from quintain_runner.results.row import BUDGET_EXHAUSTED, TARGET_CHANGED, Check, GraderRow
from quintain_runner.spec.judge_graders import JudgeGrader, VoteRule

#: The codes of missing votes that say more than others: that of the verdict is the first of them.
_FIRST_CODES = (BUDGET_EXHAUSTED, TARGET_CHANGED)

#: Sums of scores are rounded to this many decimal places, so that the order of the judges does not change a verdict.
_ROUND_DIGITS = 12


def jury_result(spec: JudgeGrader, votes: Mapping[str, GradingResult]) -> GradingResult:
    """The result of a jury with these votes, by judge; one with an error is missing.

    The jury has a verdict with ``min_votes`` votes, unless a missing vote could decide: where as many pass as fail, or
    where all judges must pass the answer.
    """
    rows = {judge: vote.row for judge, vote in votes.items()}
    missing = {judge: vote for judge, vote in votes.items() if vote.row.error is not None}
    given = {judge: row for judge, row in rows.items() if judge not in missing}
    usage = sum((vote.token_usage for vote in votes.values()), NO_TOKENS)
    calls, earlier_calls = sum(row.calls for row in rows.values()), sum(vote.earlier_calls for vote in votes.values())
    row = _verdict(spec, given, lacks_votes=bool(missing))
    if row is not None:
        return GradingResult(row.with_fields(calls=calls, votes=rows), usage, earlier_calls=earlier_calls)
    why = "; ".join(f"{judge}: {vote.row.error}" for judge, vote in missing.items())
    rule = f"vote: {spec.vote}, min_votes: {spec.min_votes}"
    text = f"the jury has no verdict with {len(given)} of its {len(rows)} votes ({rule}). {why}"
    in_doubt = any(vote.in_doubt for vote in missing.values())
    codes = [vote.error_code for vote in missing.values()]
    return GradingResult(
        GraderRow(error=text, calls=calls, votes=rows, in_doubt=in_doubt),
        usage,
        error_code=next((code for code in _FIRST_CODES if code in codes), codes[0]),
        in_doubt=in_doubt,
        earlier_calls=earlier_calls,
    )


def _verdict(spec: JudgeGrader, votes: Mapping[str, GraderRow], *, lacks_votes: bool) -> GraderRow | None:
    """The verdict of the votes that were given; None where they are too few, or a missing one decides."""
    if len(votes) < spec.min_votes:
        return None
    passes = [bool(vote.passed) for vote in votes.values()]
    score = _mean([vote.score or 0.0 for vote in votes.values()])
    is_tied = spec.vote == "majority" and 2 * sum(passes) == len(passes)
    if lacks_votes and (is_tied or (spec.vote == "all" and all(passes))):
        return None
    checks = _voted_checks(spec, list(votes.values()))
    required = {criterion.id for criterion in spec.rubric if criterion.required}
    passed = _passes(spec.vote, score, passes) and all(check.passed for check in checks if check.id in required)
    said = "; ".join(f"{judge}: {vote.reason}" for judge, vote in votes.items() if vote.reason)
    summary = f"{sum(passes)} of {len(passes)} votes pass{', a tie' if is_tied else ''}"
    reason = f"{summary}. {said}" if said else summary
    return GraderRow(score=score, passed=passed, tied=is_tied, reason=reason, checks=checks)


def _voted_checks(spec: JudgeGrader, votes: Sequence[GraderRow]) -> list[Check]:
    """The criteria of a rubric, each with the mean of its scores, and with a vote of its own."""
    checks = []
    for criterion, said in zip(spec.rubric, zip(*(vote.checks for vote in votes), strict=True), strict=True):
        score = _mean([check.score or 0.0 for check in said])
        passed = _passes(spec.vote, score, [check.passed for check in said])
        check = Check(id=criterion.id, text=criterion.text, passed=passed, score=score, weight=criterion.weight)
        checks.append(check)
    return checks


def _passes(rule: VoteRule, score: float, passes: Sequence[bool]) -> bool:
    match rule:
        case "majority":
            return 2 * sum(passes) > len(passes)
        case "mean":
            return score >= PASS_SCORE
        case "all":
            return all(passes)


def _mean(scores: Sequence[float]) -> float:
    return round(sum(scores) / len(scores), _ROUND_DIGITS)
