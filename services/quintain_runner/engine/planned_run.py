"""Opens what a run has before its first call: its graders, rows, stores and record, and the plan of what it asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from quintain.contracts.session import Info
from quintain.programs.agent_urls import with_proxy_bypass
from quintain_runner.engine.answers import RunAnswers, open_answers
from quintain_runner.engine.comparisons import Comparisons, open_comparisons
from quintain_runner.engine.gates import open_baseline
from quintain_runner.engine.recording import RecordedAnswers
from quintain_runner.engine.requirements import check_turns
from quintain_runner.engine.rerun_plan import Planner, RerunPlan, run_fingerprints, target_references
from quintain_runner.engine.run_settings import RunSettings
from quintain_runner.graders.base import GraderRunner
from quintain_runner.graders.factory import open_graders
from quintain_runner.graders.judge import recorded_judges
from quintain_runner.plan.trials import check_targets_available
from quintain_runner.report.run_file import RunFile, open_run
from quintain_runner.report.run_report import RunReport
from quintain_runner.results.store import ResultFile, open_results


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run before its first call; ``calls_in_rows`` were charged for the rows of earlier commands. No target may be
    worse than in the ``baseline``.
    """

    plan: RerunPlan
    record: RunFile
    graders: tuple[GraderRunner, ...]
    comparisons: Comparisons
    results: ResultFile
    answers: RunAnswers | RecordedAnswers
    calls_in_rows: int
    baseline: RunReport | None


@asynccontextmanager
async def open_planned_run(run: RunSettings, info: Info, gateway_url: str | None) -> AsyncIterator[PlannedRun]:
    """Plan a run by what a session tells of the targets, and take the rows out that are not wanted any more.

    Raises `ConfigError` if a target is not served or the results cannot be continued.
    """
    evaluation, options = run.evaluation, run.options
    env = dict(run.env) if gateway_url is None else with_proxy_bypass(run.env, gateway_url)
    check_targets_available(target_references(run, run.targets), info.available_targets)
    check_turns(run.dataset, run.targets, info.one_question_targets or ())
    async with (
        AsyncExitStack() as stack,
        open_graders(
            evaluation,
            env,
            gateway_url=gateway_url,
            output=options.folder,
            sessionless=options.sessionless,
            functions=options.functions,
        ) as graders,
        open_results(options.folder, keeps_content=options.keeps_content) as results,
    ):
        calls_in_rows = results.resume_state.calls_in_rows
        record = await asyncio.to_thread(_open_record, run)
        baseline = await asyncio.to_thread(open_baseline, run, record)
        record = record.with_fields(judges=record.judges | recorded_judges(graders))
        fingerprints = await run_fingerprints(run, info, graders, record, env)
        answers = stack.enter_context(open_answers(run, fingerprints.targets))
        results.write_before_rows(answers.write)
        comparisons = stack.enter_context(open_comparisons(evaluation, record.configuration.targets, fingerprints))
        plan = await Planner(run, results, comparisons, answers.holds).plan()
        plan.different_seconds = {
            name: (info.now - since) / 1000
            for name, since in (info.different_since or {}).items()
            if name in fingerprints.targets
        }
        selection = run.selection.to_wire()
        yield PlannedRun(
            plan=plan,
            record=record.with_command(options.command, fingerprints, plan.to_wire(), selection, run.overrides),
            graders=graders,
            comparisons=comparisons,
            results=results,
            answers=answers,
            calls_in_rows=calls_in_rows,
            baseline=baseline,
        )


def _open_record(run: RunSettings) -> RunFile:
    options, sha256 = run.options, run.dataset.sha256
    is_narrowed = bool(options.targets)
    return open_run(options.folder, run.evaluation, run.targets, sha256, is_narrowed=is_narrowed, cards=run.cards)
