"""The fingerprints of everybody who is asked in a run, and the places that name them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quintain.contracts.session import Info
from quintain_runner.engine.comparisons import pairwise_graders
from quintain_runner.engine.run_settings import RunSettings
from quintain_runner.graders.base import GraderRunner, judge_place, judge_references
from quintain_runner.graders.factory import grader_fingerprints
from quintain_runner.plan.changes import RunFingerprints
from quintain_runner.report.run_file import RunFile


async def run_fingerprints(
    run: RunSettings, info: Info, graders: tuple[GraderRunner, ...], record: RunFile, env: dict[str, str]
) -> RunFingerprints:
    """The fingerprints of everybody who is asked in this run, as workers registered them, and of the graders.

    Targets that this command does not call are in it if they are served now.
    """
    targets = record.configuration.targets
    served = [name for name in targets if name in run.targets or name in info.available_targets]
    names = dict.fromkeys([*served, *(name for _, name in target_references(run, served))])
    known: dict[str, str | None] = {name: (info.target_fingerprints or {}).get(name) for name in names}
    target_models = run.models
    models = {one: target_models[name] for name, one in known.items() if one and name in target_models}
    return RunFingerprints(
        targets=known,
        graders=await grader_fingerprints(run.evaluation, graders, run.judge_targets, known, env),
        unavailable_graders=frozenset(run.evaluation.unavailable_graders),
        pairwise_graders=frozenset(grader.name for grader in pairwise_graders(run.evaluation)),
        models={**record.fingerprints.models, **models},
        generation=record.generation + run.options.regrades,
    )


def target_references(run: RunSettings, targets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each of these targets, of the users who speak to them and of their judges, with the place that names it; only
    the judges where the answers were given."""
    path = run.evaluation.path
    if not run.options.rerun_policy.given_answers:
        for target in targets:
            yield f"{path}: targets", target
        yield from run.dataset.user_references
    for index, judge in judge_references(run.evaluation, targets, run.judge_targets):
        yield judge_place(run.evaluation, index), judge
