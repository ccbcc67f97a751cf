"""``quintain check``: finds the errors of an evaluation before it runs, and estimates its calls, tokens and cost."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from quintain.settings import environment, read_settings
from quintain_cli.console import (
    EXIT_ERRORS,
    EXIT_OK,
    EXIT_USAGE,
    escape_for_terminal,
    format_count,
    print_json,
    run_command,
    stdout_console,
)
from quintain_cli.run.preflight import CheckOptions, CheckReport, check_evaluation
from quintain_cli.run.probe import ProbeResult
from quintain_runner import RunEstimate, dollars


def check(
    path: Annotated[Path, typer.Argument(metavar="EVAL.YAML", help="The evaluation file.")],
    target: Annotated[
        list[str] | None, typer.Option(help="A target under test; again for more; narrows the file's.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The configuration, else quintain.yaml found upwards.")] = None,
    probe: Annotated[bool, typer.Option("--probe", help="Ask each target once: it costs one call each.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only what was found, as JSON.")] = False,
) -> None:
    """Find every mistake of an evaluation before it is run, and estimate calls, tokens and cost.

    Looks at the files, the targets, the graders and the variables; a dataset's command is run. Exit codes: 0 ready,
    1 a probe failed, 2 something is to be mended.
    """
    options = CheckOptions(path=path, targets=tuple(target or ()), config=config, probe=probe)
    report = run_command(check_evaluation(options, read_settings(environment())), as_json=as_json)
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
            stdout_console().print(escape_for_terminal(line), markup=False, soft_wrap=True)
        stdout_console().print(_exit_line(report, code), markup=False, soft_wrap=True)
    raise typer.Exit(code)


def report_lines(report: CheckReport) -> Iterator[str]:
    """What was found, a line each."""
    if report.cases is not None:
        yield f"dataset   {format_count(report.cases, 'case')}"
    if report.targets:
        fleet_note = (
            "; on this fleet --probe asks whether they are served" if report.on_fleet and not report.probes else ""
        )
        yield f"targets   {', '.join(report.targets)}{fleet_note}"
    for grader in report.graders:
        calls_text = f", may call {', '.join(grader.calls)}: at most {format_count(grader.most_calls, 'call')} a row"
        yield f"grader    {grader.name} ({grader.kind}{calls_text if grader.calls else ''})"
    if report.variables:
        yield f"variables {', '.join(report.variables)}"
    for probe in report.probes:
        yield f"probe     {_probe_text(probe)}"
    if report.estimate is not None:
        yield from _estimate_lines(report, report.estimate)
    for problem in report.problems:
        yield f"mend      {problem}"


def _probe_text(probe: ProbeResult) -> str:
    if probe.error is not None:
        return f"{probe.target} failed{' (charged)' if probe.charged else ''}: {probe.error}"
    usage = probe.token_usage
    tokens = "tokens not told" if usage is None else f"{usage.input}+{usage.output} tokens"
    return f"{probe.target} answered in {probe.seconds:.2f} s, 1 call, {tokens}, {dollars(probe.usd)}"


def _estimate_lines(report: CheckReport, run_estimate: RunEstimate) -> Iterator[str]:
    calls = run_estimate.calls
    size_text = " × ".join(
        (
            format_count(report.cases or 0, "case"),
            format_count(len(report.targets), "target"),
            format_count(report.repeats or 1, "repeat"),
        )
    )
    max_grader_calls = calls.most - calls.answers
    yield f"calls     {size_text} = {calls.answers:,} answers" + (
        f", and {'' if calls.typical else 'at most '}{max_grader_calls:,} by graders: {calls.most:,}"
        if max_grader_calls
        else ""
    )
    yield f"budget    {_budget_text(report.max_calls, calls.answers, calls.most)}"
    for name, tokens in run_estimate.tokens.items():
        output = "unknown" if tokens.output is None else f"about {tokens.output:,}"
        basis = ", ".join(["4 characters a token", *tokens.basis])
        yield f"tokens    {name}: about {tokens.input:,} in, {output} out ({basis})"
    yield f"cost      {_cost_text(run_estimate)}"


def _cost_text(run_estimate: RunEstimate) -> str:
    unpriced_targets = [name for name in run_estimate.tokens if name not in run_estimate.usd_of]
    unpriced = [
        *(f"target {name}" for name in unpriced_targets),
        *(f"what {name} calls" for name in run_estimate.left_out),
    ]
    if run_estimate.usd is None:
        return "unknown: no price is known for tokens that are"
    unpriced_note = f", without {', '.join(unpriced)}" if unpriced else ""
    return f"about {dollars(run_estimate.usd)}{unpriced_note}"


def _budget_text(max_calls: int | None, answers: int, max_needed_calls: int) -> str:
    if max_calls is None:
        return f"none is named: {max_needed_calls:,} calls, the most this can need"
    if max_calls < answers:
        return f"{max_calls:,} calls, fewer than the {answers:,} answers: the run will park there"
    shortage_note = (
        "" if max_calls >= max_needed_calls else ", fewer than graders may spend: the run parks where they do"
    )
    return f"{max_calls:,} calls{shortage_note}"


def _exit_line(report: CheckReport, code: int) -> str:
    path = shlex.quote(report.evaluation)
    if code == EXIT_USAGE:
        return f"exit 2: {format_count(len(report.problems), 'mistake')} to mend. Then: quintain check {path}"
    if code == EXIT_ERRORS:
        failed = [target_probe.target for target_probe in report.probes if target_probe.error]
        return f"exit 1: {', '.join(failed)} did not answer. When that is mended: quintain check {path} --probe"
    probe_hint = "" if report.probes else f" To ask each target once: quintain check {path} --probe."
    return f"exit 0: ready.{probe_hint} To run it: quintain run {path}"
