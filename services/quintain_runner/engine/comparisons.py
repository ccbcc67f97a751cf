"""What the pairwise graders of a run compare: which rows, with which rows, and which comparisons are missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quintain.config.file_errors import suggestion
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain.settings import Settings
from quintain_runner.graders.pairwise import comparison_of
from quintain_runner.plan.changes import Action, RunFingerprints, input_fingerprint, unchanged_grader_row
from quintain_runner.plan.selection import CaseRequirement
from quintain_runner.plan.trials import FindRow, PlannedQuestion, Trial
from quintain_runner.report.run_file import read_run
from quintain_runner.results.counts import ANSWERED, NeededCalls
from quintain_runner.results.row import Row, RowKey, column_name
from quintain_runner.results.store import RESULTS_FILE_NAME, RowReader
from quintain_runner.spec.asking_graders import PairwiseGrader, SimilarGrader
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import single_graders


def pairwise_graders(evaluation: Evaluation) -> list[PairwiseGrader]:
    """The pairwise graders of an evaluation."""
    return [grader for grader in evaluation.graders if isinstance(grader, PairwiseGrader)]


def has_answer(row: Row | None) -> bool:
    """Whether a row has an answer that can be compared: it has its other verdicts."""
    return row is not None and row.output is not None and row.status in ANSWERED


@dataclass(frozen=True, slots=True)
class OtherRun:
    """The rows of another run, with whose answers those of this run are compared."""

    name: str
    targets: Sequence[str]
    repeats: int
    rows: RowReader

    @classmethod
    def open(cls, name: str, folder: Path) -> OtherRun:
        """Read the run in ``folder``, which the evaluation file calls ``name``. Raises `ConfigError`."""
        configuration = read_run(folder).configuration
        try:
            rows = RowReader.of_file(folder / RESULTS_FILE_NAME)
        except OSError as error:
            raise ConfigError(f"{folder / RESULTS_FILE_NAME}: it cannot be read ({error.strerror})") from None
        return cls(name, configuration.targets, configuration.repeats, rows)

    def target_for(self, target: str) -> str | None:
        """The target of that run with whose answers those of ``target`` are compared: of its name, or the only one."""
        if target in self.targets:
            return target
        return self.targets[0] if len(self.targets) == 1 else None

    def opponent(self, case: Case, key: RowKey) -> tuple[str, Row] | None:
        """What the results call the opponent of a row, and its row, if it has an answer to the same question."""
        if (target := self.target_for(key.target)) is None:
            return None
        repeat = (key.repeat - 1) % self.repeats + 1
        row = self.rows.find(RowKey(key.case_id, target, repeat, key.prompt))
        if row is None or not has_answer(row) or row.fingerprints.input != input_fingerprint(case):
            return None
        return f"{column_name(target, key.prompt)} ({self.name})", row


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparisons:
    """The comparisons of a run. ``targets`` are those of all its commands, ``other_runs`` are by `other_run`."""

    graders: Sequence[PairwiseGrader]
    targets: Sequence[str]
    fingerprints: RunFingerprints
    other_runs: Mapping[str, OtherRun] = field(default_factory=dict)

    def trials(self, questions: Iterable[PlannedQuestion], target: str, find_row: FindRow) -> Iterator[Trial]:
        """The rows of a target that lack a comparison, each as a trial with its opponents."""
        for case, prompt, repeat, occurrence in questions:
            key = RowKey(case.id, target, repeat, prompt)
            row = find_row(key)
            if row is None or not has_answer(row):
                continue
            opponents = {
                grader.name: found
                for grader in self.graders
                if (found := self._opponents(grader, case, key, find_row)) and self._lacks(grader.name, row, found)
            }
            if opponents:
                yield Trial(
                    case=case,
                    target=target,
                    repeat=repeat,
                    fingerprints=row.fingerprints,
                    prompt=prompt,
                    previous=row,
                    kept=row,
                    opponents=opponents,
                    occurrence=occurrence,
                )

    def missing(
        self, question: PlannedQuestion, planned: Mapping[str, tuple[Action, Row | None]]
    ) -> Iterator[tuple[str, NeededCalls]]:
        """The comparisons that rows of a question will lack: each target that has some, and what they need at most.

        ``planned`` is what becomes of the row of each target, and the row that it has.
        """
        for target, (action, row) in planned.items():
            key = RowKey(question.case.id, target, question.repeat, question.prompt)
            names: list[str] = []
            for grader in self.graders:
                opponents = {
                    name: planned[name]
                    for name in grader.opponents(target, list(self.targets))
                    if name in planned and _will_answer(*planned[name])
                }
                if not _will_answer(action, row):
                    continue
                lacking = sum(
                    Action.ASK in (action, other_action)
                    or not self._has(grader.name, row, column_name(name, question.prompt), other)
                    for name, (other_action, other) in opponents.items()
                )
                if (run := self.other_runs.get(grader.name)) and (found := run.opponent(question.case, key)):
                    lacking += 2 * (action is Action.ASK or not self._has(grader.name, row, *found))
                names += [grader.name] * lacking
            if names:
                yield target, NeededCalls(graders=tuple(names))

    def _opponents(self, grader: PairwiseGrader, case: Case, key: RowKey, find_row: FindRow) -> dict[str, Row]:
        if (run := self.other_runs.get(grader.name)) is not None:
            return dict([found] if (found := run.opponent(case, key)) else [])
        keys = (key._replace(target=name) for name in grader.opponents(key.target, list(self.targets)))
        rows = ((column_name(other.target, other.prompt), find_row(other)) for other in keys)
        asked = input_fingerprint(case)
        return {
            name: row for name, row in rows if row is not None and has_answer(row) and row.fingerprints.input == asked
        }

    def _lacks(self, grader: str, row: Row, opponents: Mapping[str, Row]) -> bool:
        """Whether the row has other comparisons than those with the answers that its opponents have now."""
        verdict = unchanged_grader_row(row, grader, row.fingerprints, self.fingerprints)
        compared = 0 if verdict is None else len(verdict.comparisons or ())
        return compared != len(opponents) or any(
            not self._has(grader, row, name, other) for name, other in opponents.items()
        )

    def _has(self, grader: str, row: Row | None, opponent: str, other: Row | None) -> bool:
        if row is None or other is None:
            return False
        verdict = unchanged_grader_row(row, grader, row.fingerprints, self.fingerprints)
        found = comparison_of(verdict, opponent, other)
        return found is not None and found.score is not None


def _will_answer(action: Action, row: Row | None) -> bool:
    """Whether the row has an answer to compare when all is asked and graded."""
    if row is None or row.output is None:
        return action is Action.ASK
    return True


@contextlib.contextmanager
def open_comparisons(
    evaluation: Evaluation, targets: Sequence[str], fingerprints: RunFingerprints
) -> Iterator[Comparisons]:
    """Open the runs with which the graders compare; they are closed at the end of the ``with`` block."""
    graders = pairwise_graders(evaluation)
    with contextlib.ExitStack() as stack:
        other_runs: dict[str, OtherRun] = {}
        for grader in graders:
            if (name := grader.other_run) is not None:
                other_runs[grader.name] = run = OtherRun.open(name, evaluation.folder / name)
                stack.callback(run.rows.close)
        yield Comparisons(graders=graders, targets=targets, fingerprints=fingerprints, other_runs=other_runs)


def comparing_problems(evaluation: Evaluation, settings: Settings, *, keeps_content: bool) -> Iterator[str]:
    """A line for each grader that compares answers where rows are written without them, or embeds them and cannot."""
    for index, grader in evaluation.numbered_graders:
        place = f"{evaluation.path}: graders[{index}] ({grader.name})"
        if isinstance(grader, PairwiseGrader) and not keeps_content:
            yield f"{place}: it compares the answers in rows, and --no-content leaves them out"
        embeds = any(isinstance(one, SimilarGrader) for one in single_graders([grader]))
        if embeds and settings.broker_url is None and settings.gateway_url is not None:
            yield f"{place}: embeddings are asked for over a broker, and not through a gateway: set QUINTAIN_BROKER_URL"


@contextlib.contextmanager
def opponent_requirements(
    evaluation: Evaluation, targets: Sequence[str], output: Path, problems: list[str]
) -> Iterator[tuple[CaseRequirement, ...]]:
    """The requirement of each comparison with another run: that has an answer to every case. Open inside the block.

    ``targets`` are those of the command, and ``output`` is the run's own folder. A line for each grader that has
    nothing to compare is added to ``problems``.
    """
    requirements: list[CaseRequirement] = []
    targets = evaluation.spec.targets or targets
    with contextlib.ExitStack() as stack:
        for index, grader in evaluation.numbered_graders:
            if not isinstance(grader, PairwiseGrader) or not targets:
                continue
            try:
                if grader.other_run is None:
                    _check_targets(grader, targets)
                else:
                    run = _open_checked(evaluation, grader.other_run, targets, output)
                    stack.callback(run.rows.close)
                    requirements.append(_requirement(evaluation, grader, run, targets))
            except ConfigError as error:
                problems.append(f"{evaluation.path}: graders[{index}].against: {error.message}")
        yield tuple(requirements)


def _open_checked(evaluation: Evaluation, name: str, targets: Sequence[str], output: Path) -> OtherRun:
    folder = evaluation.folder / name
    if folder.resolve() == output.resolve():
        raise ConfigError(f"{folder} is the run's own folder, compared with itself; name another run, or all")
    run = OtherRun.open(name, folder)
    if unknown := [target for target in targets if run.target_for(target) is None]:
        run.rows.close()
        known = ", ".join(run.targets)
        raise ConfigError(f"{folder} has no target {', '.join(unknown)}, and more than one other: {known}")
    return run


def _requirement(
    evaluation: Evaluation, grader: PairwiseGrader, run: OtherRun, targets: Sequence[str]
) -> CaseRequirement:
    def is_met(case: Case) -> bool:
        return all(
            run.opponent(prompt.apply(case), RowKey(case.id, target, 1, prompt.name)) is not None
            for prompt in evaluation.prompts
            for target in targets
        )

    return CaseRequirement(
        is_met=is_met,
        problem=f"no answer to the same question in {run.name}",
        reason=f"{grader.name} (pairwise) compares with that run",
        fix="run them there first, or leave them out with where",
    )


def _check_targets(grader: PairwiseGrader, targets: Sequence[str]) -> None:
    if grader.against not in ("all", *targets):
        raise ConfigError(
            f"unknown target {grader.against!r}{suggestion(grader.against, list(targets))}; it is all, a target of the "
            "evaluation, or the folder of a run with a slash, such as runs/base"
        )
    if len(targets) == 1:
        whom = "nothing" if grader.against == "all" else "itself"
        raise ConfigError(
            f"{targets[0]} is the only target, and would be compared with {whom}; name more targets, or the folder of "
            "another run, such as runs/base"
        )
