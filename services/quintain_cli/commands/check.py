"""``quintain check``: finds the errors of an evaluation before it runs, and estimates its calls, tokens and cost."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from quintain.fleet.tables import format_count
from quintain.settings import environment, read_settings
from quintain_cli.console import (
    EXIT_ERRORS,
    EXIT_OK,
    EXIT_USAGE,
    AsJson,
    MaxCostOption,
    escape_for_terminal,
    print_json,
    print_stdout,
    run_command,
)
from quintain_cli.run_output import GraderOption, ModelOption, PromptOption, SetOption, format_size
from quintain_runner.engine.cost_limit import CostLimitCheck
from quintain_runner.engine.estimate import CostRange, RunEstimate
from quintain_runner.engine.preflight import CheckReport, ProbeResult, check_evaluation
from quintain_runner.engine.run_settings import RunOptions
from quintain_runner.plan.trial_selection import SelectionOptions
from quintain_runner.results.bill import SIMULATED_USER, dollars


def check(
    path: Annotated[Path, typer.Argument(metavar="EVAL.YAML", help="The evaluation file.")],
    target: Annotated[list[str] | None, typer.Option(help="A target to test, one of the file's; repeatable.")] = None,
    prompt: PromptOption = None,
    grader: GraderOption = None,
    model: ModelOption = None,
    overrides: SetOption = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file; default: quintain.yaml here or above.")
    ] = None,
    max_cost_usd: MaxCostOption = None,
    probe: Annotated[bool, typer.Option("--probe", help="Call each target once; each call is charged.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check an evaluation for errors, and estimate its cost.

    Checks the files, the targets, the graders and the environment variables; the command of a dataset is executed.
    Estimates calls, tokens and cost. No call is made, except with --probe. Exit codes: 0 ready, 1 a probe failed,
    2 there are errors to fix.
    """
    options = RunOptions(
        path=path, config=config, targets=tuple(target or ()), max_cost_usd=max_cost_usd,
        model=model, overrides=tuple(overrides or ()),
        selection=SelectionOptions(prompts=tuple(prompt or ()), graders=tuple(grader or ())),
    )  # fmt: skip
    report = run_command(check_evaluation(options, read_settings(environment()), probe=probe), as_json=as_json)
    code = (
        EXIT_USAGE
        if report.problems
        else EXIT_ERRORS
        if any(target_probe.error for target_probe in report.probes)
        else EXIT_OK
    )
    if as_json:
        print_json({"exitCode": code, **json.loads(report.model_dump_json(by_alias=True))})
    else:
        for line in report_lines(report):
            print_stdout(escape_for_terminal(line))
        print_stdout(_exit_line(report, code))
    raise typer.Exit(code)


def report_lines(report: CheckReport) -> Iterator[str]:
    """Yield the lines of a report."""
    yield from _trial_lines(report)
    for grader in report.graders:
        calls_text = f", may call {', '.join(grader.calls)}: at most {format_count(grader.most_calls, 'call')} per row"
        of_cases = "" if grader.cases is None else f", of {format_count(grader.cases, 'case')}"
        yield f"grader    {grader.name} ({grader.kind}{of_cases}{calls_text if grader.calls else ''})"
    if report.variables:
        yield f"variables {', '.join(report.variables)}"
    for probe in report.probes:
        yield f"probe     {_probe_text(probe)}"
    if report.estimate is not None:
        yield from _estimate_lines(report, report.estimate)
    if report.not_checked:
        yield f"unchecked {'; '.join(report.not_checked)}"
    for warning in report.warnings:
        yield f"warning   {warning}"
    for problem in report.problems:
        yield f"error     {problem}"


def _trial_lines(report: CheckReport) -> Iterator[str]:
    if report.cases is not None:
        yield f"dataset   {format_count(report.cases, 'case')}"
    if report.targets:
        fleet_note = "; --probe checks whether this fleet serves them" if report.on_fleet and not report.probes else ""
        yield f"targets   {', '.join(report.targets)}{fleet_note}"
    if report.prompts:
        yield f"prompts   {', '.join(report.prompts)}"


def _probe_text(probe: ProbeResult) -> str:
    if probe.error is not None:
        charge = " (perhaps charged)" if probe.charge_unknown else " (charged)" if probe.charged else ""
        return f"{probe.target} failed{charge}: {probe.error}"
    usage = probe.token_usage
    tokens = "tokens unknown" if usage is None else f"{usage.input}+{usage.output} tokens"
    return f"{probe.target} answered in {probe.seconds:.2f} s, 1 call, {tokens}, {dollars(probe.usd)}"


def _estimate_lines(report: CheckReport, run_estimate: RunEstimate) -> Iterator[str]:
    calls = run_estimate.calls
    size_text = format_size(report.cases or 0, report.prompts, report.targets, report.repeats or 1)
    max_grader_calls = calls.most - calls.answers
    trials = (report.cases or 0) * max(1, len(report.prompts)) * len(report.targets) * (report.repeats or 1)
    turns = f"{trials:,} trials, at most {calls.answers:,} turns" if calls.answers > trials else ""
    yield f"calls     {size_text} = {turns or format_count(calls.answers, 'answer')}" + (
        f", and {'' if calls.typical else 'at most '}{max_grader_calls:,} by graders: {calls.most:,}"
        if max_grader_calls
        else ""
    )
    yield f"budget    {_budget_text(report.max_calls, calls.answers, calls.most)}"
    if report.cost_limit is not None:
        yield f"money     {_cost_limit_text(report.cost_limit)}"
    for name, tokens in run_estimate.tokens.items():
        output = "unknown" if tokens.output is None else f"about {tokens.output:,}"
        basis = ", ".join(["4 characters a token", *tokens.basis])
        yield f"tokens    {name}: about {tokens.input:,} in, {output} out ({basis})"
    yield f"cost      {_cost_text(run_estimate)}"
    if run_estimate.usd_range is not None:
        yield f"range     {_range_text(run_estimate.usd_range)}"
    for source in sorted(set(run_estimate.price_sources.values())):
        names = ", ".join(name for name, own in run_estimate.price_sources.items() if own == source)
        yield f"prices    {source}: {names}"


def _cost_text(run_estimate: RunEstimate) -> str:
    unpriced_targets = [name for name in run_estimate.tokens if name not in run_estimate.usd_of]
    unpriced = [
        *(f"target {name}" for name in unpriced_targets),
        *(f"calls of {'the' if name == SIMULATED_USER else 'grader'} {name}" for name in run_estimate.left_out),
    ]
    if run_estimate.usd is None:
        return "unknown: no target has both a token estimate and a price"
    unpriced_note = f", without {', '.join(unpriced)}" if unpriced else ""
    return f"about {dollars(run_estimate.usd)}{unpriced_note}"


def _range_text(usd: CostRange) -> str:
    most = "no known limit" if usd.most_usd is None else dollars(usd.most_usd)
    return f"{dollars(usd.least_usd)} to {most} ({'; '.join(usd.basis)})"


def _cost_limit_text(limit: CostLimitCheck) -> str:
    reserved = [f"a row of {name} reserves {dollars(usd)} with its graders" for name, usd in limit.rows_usd.items()]
    at_once = [] if limit.rows_at_once is None else [f"{format_count(limit.rows_at_once, 'row')} at once fit"]
    advice = [] if limit.advice is None else [limit.advice]
    soft = [f"soft: answers of {', '.join(limit.soft)} have no limit, and are estimated"] if limit.soft else []
    return "; ".join([f"at most {dollars(limit.max_cost_usd)}", *soft, *reserved, *at_once, *advice])


def _budget_text(max_calls: int | None, answers: int, max_needed_calls: int) -> str:
    if max_calls is None:
        return f"not set: {max_needed_calls:,} calls, the most this run can need"
    if max_calls < answers:
        return f"{max_calls:,} calls, fewer than the {answers:,} answers: the run will stop there"
    shortage_note = (
        ""
        if max_calls >= max_needed_calls
        else ", fewer than may be needed with graders: the run stops when they are spent"
    )
    return f"{max_calls:,} calls{shortage_note}"


def _exit_line(report: CheckReport, code: int) -> str:
    path = shlex.quote(report.evaluation)
    if code == EXIT_USAGE:
        return f"exit 2: {format_count(len(report.problems), 'error')} to fix. Then: quintain check {path}"
    if code == EXIT_ERRORS:
        failed = [target_probe.target for target_probe in report.probes if target_probe.error]
        return f"exit 1: {', '.join(failed)} did not answer. When that is fixed: quintain check {path} --probe"
    probe_hint = "" if report.probes else f" To call each target once: quintain check {path} --probe."
    return f"exit 0: ready.{probe_hint} To run it: quintain run {path}"
