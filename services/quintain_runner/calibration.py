"""Calibrates the judges of an evaluation: runs only them over labeled answers, and compares them with the labels.

It is a run of its own, in its own folder: the answers stand in its rows before it begins, so that no target is called,
and judges are called, counted and resumed as in every run.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from quintain.contracts.message import Message
from quintain.errors import ConfigError
from quintain_runner.engine.run import RunListener
from quintain_runner.engine.run_settings import RunOptions, RunSettings
from quintain_runner.evaluation import checked_run, execute_checked
from quintain_runner.files import atomic_write
from quintain_runner.plan.labeled_answers import (
    Half,
    LabeledAnswer,
    LabeledAnswers,
    UnusedLabels,
    answers_of_file,
    answers_of_run,
    is_same_answer,
)
from quintain_runner.plan.selection import CaseSelection
from quintain_runner.plan.trial_selection import SelectionOptions, TrialSelection
from quintain_runner.report.run_file import FILE_NAME, open_run, write_run
from quintain_runner.report.run_report import RunReport
from quintain_runner.results.labels import verdicts_of
from quintain_runner.results.row import Row, RowKey
from quintain_runner.results.store import current_rows, open_results
from quintain_runner.spec.asking_graders import ACTIVITY_SECTIONS
from quintain_runner.spec.graders import GraderSpec, judges_among
from quintain_runner.statistics.judge_agreement import (
    JudgePair,
    LabelAgreement,
    LabeledVerdict,
    agreement_differences,
    label_agreement,
)
from quintain_runner.statistics.significance import Difference

CALIBRATION_FILE_NAME = "calibration.json"

#: So many disagreements are kept: enough to change a prompt by.
MAX_DISAGREEMENTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    """What is calibrated: the judges of the evaluation of ``run``, on labels of its file or of ``labeled_run``.

    ``half`` is the half of the cases to which the judges are asked, None for both; ``seed`` says how they are split.
    """

    run: RunOptions
    labeled_run: Path
    half: Half | None = None
    seed: int = 0


class Disagreement(Message):
    """An answer on which a judge and the label differ."""

    case_id: str
    column: str
    repeat: int
    judge: str
    label: bool
    verdict: bool


class JudgeComparison(Message):
    """Two judges on the same ``labels`` of the held-out half: how much more often the first agrees with them."""

    first: str
    second: str
    labels: int
    difference: Difference | None = None


class Calibration(Message):
    """How far judges agree with labels, by half of the cases.

    ``left_out`` are the labels that are not used, by the reason, and ``without_verdict`` the answers on which a judge
    gave no verdict, or a jury a tie. ``disagreements`` are of the development half only: a reader of those of the
    other half has no labels left to compare judges by.
    """

    evaluation: str
    source: str
    seed: int
    labels: int
    half: Half | None = None
    left_out: dict[str, UnusedLabels] = Field(default_factory=dict)
    without_verdict: dict[str, int] = Field(default_factory=dict)
    halves: dict[Half, dict[str, LabelAgreement]] = Field(default_factory=dict)
    comparisons: list[JudgeComparison] = Field(default_factory=list)
    disagreements: list[Disagreement] = Field(default_factory=list)


async def calibrate(options: CalibrationOptions, listener: RunListener | None = None) -> tuple[Calibration, RunReport]:
    """Run the judges over the labeled answers, and compare them. Raises as `execute_run`."""
    run = await checked_run(options.run)
    found = await asyncio.to_thread(_read_answers, run, options.labeled_run)
    answers = found.in_half(options.half, options.seed)
    if not answers:
        raise ConfigError(f"{found.source}: no label is of a case of the {options.half} half; label more")
    run = _narrowed(run, found, answers)
    await _store_answers(run, answers)
    report = await execute_checked(run, listener)
    result = await asyncio.to_thread(_compared, options, found, answers, run.evaluation.spec.graders)
    with atomic_write(options.run.folder / CALIBRATION_FILE_NAME) as file:
        file.write(result.to_wire() + b"\n")
    return result, report


def _read_answers(run: RunSettings, labeled_run: Path) -> LabeledAnswers:
    evaluation, labels = run.evaluation, run.evaluation.spec.labels
    with run.open_cases() as cases:
        if labels is None:
            found = answers_of_run(labeled_run, cases, run.targets, evaluation.prompts)
        else:
            found = answers_of_file(evaluation.path.parent / labels, cases, run.targets, evaluation.prompts[0])
    shared = list(judges_among(evaluation.spec.graders))
    answers = [replace(one, judges=(*shared, *one.judges)) for one in found.answers]
    for one in answers:
        if not one.judges:
            found.leave_out("of cases without a judge", one.row.case_id)
        for judge in one.judges:
            if labels is not None and not set(ACTIVITY_SECTIONS).isdisjoint(judge.show or ()):
                raise ConfigError(
                    f"{found.source}: its answers are texts, and the judge {judge.name} is shown what a target did; "
                    "label answers of a run in `quintain view`, and take labels out of the evaluation file"
                )
    found.answers = [one for one in answers if one.judges]
    if not found.answers:
        raise ConfigError(f"{evaluation.path}: graders: no labeled case has a judge; add one with builtin: llm-judge")
    return found


def _narrowed(run: RunSettings, found: LabeledAnswers, answers: Sequence[LabeledAnswer]) -> RunSettings:
    """The run of just the cases with labels, of which the command executes those of these answers."""
    labeled = frozenset(one.row.case_id for one in found.answers)
    source = replace(run.dataset.source, selection=CaseSelection(where={}, ids=labeled))
    targets = tuple(target for target in run.targets if any(one.row.target == target for one in found.answers))
    repeats = max(one.row.repeat for one in found.answers)
    case_ids = tuple(dict.fromkeys(one.row.case_id for one in answers))
    spec = run.evaluation.spec.model_copy(update={"repeats": repeats, "targets": list(targets)})
    return replace(
        run,
        evaluation=replace(run.evaluation, spec=spec),
        targets=targets,
        dataset=replace(run.dataset, source=source, cases=len(labeled)),
        options=replace(run.options, targets=targets),
        selection=TrialSelection(
            options=SelectionOptions(ids=case_ids),
            cases=CaseSelection(where={}, ids=frozenset(case_ids)),
            case_count=len(case_ids),
            targets=frozenset(targets),
        ),
    )


async def _store_answers(run: RunSettings, answers: Sequence[LabeledAnswer]) -> None:
    """Write the answers that the folder does not hold yet. Raises `ConfigError` if it is the folder of a run."""
    folder = run.options.folder
    folder.mkdir(parents=True, exist_ok=True)
    record = open_run(folder, run.evaluation, run.targets, run.dataset.sha256)
    if not (folder / FILE_NAME).exists():
        write_run(folder, record, ended=False)
    stored = {row.key: row for row in await asyncio.to_thread(lambda: list(current_rows(folder)))}
    async with open_results(folder) as results:
        missing = [one.row for one in answers if not is_same_answer(stored.get(one.key), one.row)]
        await asyncio.gather(*(results.append(row, supersedes=row.key in stored) for row in missing))


def _compared(
    options: CalibrationOptions, found: LabeledAnswers, answers: Sequence[LabeledAnswer], graders: Sequence[GraderSpec]
) -> Calibration:
    judges = list(dict.fromkeys(name for one in answers for name in one.verdict_names))
    rows = {row.key: row for row in current_rows(options.run.folder)}
    judged = {half: [_verdicts(one, rows) for one in answers if _half(one, options) is half] for half in Half}
    every = [one for half in judged.values() for one in half]
    missing = Counter(name for one in every for name in one.answer.verdict_names if name not in one.verdicts)
    return Calibration(
        evaluation=str(options.run.path),
        source=str(found.source),
        seed=options.seed,
        labels=len(answers),
        half=options.half,
        left_out=found.left_out,
        without_verdict=dict(missing),
        halves={
            half: {judge: label_agreement(_of_judge(ones, judge)) for judge in judges}
            for half, ones in judged.items()
            if ones
        },
        comparisons=_comparisons(judged[Half.HELD_OUT], [one.name for one in graders]),
        disagreements=list(_disagreements(judged[Half.DEVELOPMENT], judges))[:MAX_DISAGREEMENTS],
    )


def _half(answer: LabeledAnswer, options: CalibrationOptions) -> Half:
    return Half.of(answer.row.case_id, options.seed)


@dataclass(frozen=True, slots=True)
class _Judged:
    """A labeled answer and the verdicts on it, by judge; those who gave none are not in it."""

    answer: LabeledAnswer
    verdicts: Mapping[str, bool]


def _verdicts(answer: LabeledAnswer, rows: Mapping[RowKey, Row]) -> _Judged:
    row = rows.get(answer.key)
    graders = row.graders if row is not None and is_same_answer(row, answer.row) else {}
    return _Judged(answer, verdicts_of(graders))


def _of_judge(judged: Iterable[_Judged], judge: str) -> list[LabeledVerdict]:
    return [
        LabeledVerdict(one.answer.row.case_id, one.answer.label, one.verdicts[judge])
        for one in judged
        if judge in one.verdicts
    ]


def _comparisons(judged: Sequence[_Judged], judges: Sequence[str]) -> list[JudgeComparison]:
    pairs = list(itertools.combinations(judges, 2)) if judged else []
    compared = [
        [
            JudgePair(one.answer.row.case_id, one.answer.label, one.verdicts[first], one.verdicts[second])
            for one in judged
            if first in one.verdicts and second in one.verdicts
        ]
        for first, second in pairs
    ]
    return [
        JudgeComparison(first=first, second=second, labels=len(both), difference=difference)
        for (first, second), both, difference in zip(pairs, compared, agreement_differences(compared), strict=True)
    ]


def _disagreements(judged: Iterable[_Judged], judges: Sequence[str]) -> Iterable[Disagreement]:
    for one in judged:
        row = one.answer.row
        for judge in judges:
            if (verdict := one.verdicts.get(judge, one.answer.label)) != one.answer.label:
                yield Disagreement(
                    case_id=row.case_id,
                    column=row.column,
                    repeat=row.repeat,
                    judge=judge,
                    label=one.answer.label,
                    verdict=verdict,
                )
