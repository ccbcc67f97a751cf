"""``quintain check``: is this evaluation ready to run, and what would it take? Nothing is called but by ``--probe``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from quintain.settings import environment, read_settings
from quintain_cli.checking import CheckOptions, CheckReport, look
from quintain_cli.probing import Probe
from quintain_cli.run import many
from quintain_cli.screen import ERRORS, OK, USAGE, out, plain, print_json, run_command
from quintain_runner import Estimate, dollars


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
    report = run_command(look(options, read_settings(environment())), as_json=as_json)
    code = USAGE if report.problems else ERRORS if any(one.error for one in report.probes) else OK
    if as_json:
        print_json({"exitCode": code, **json.loads(report.model_dump_json(by_alias=True))})
    else:
        for line in lines_of(report):
            out().print(plain(line), markup=False, soft_wrap=True)
        out().print(_last_line(report, code), markup=False, soft_wrap=True)
    raise typer.Exit(code)


def lines_of(report: CheckReport) -> Iterator[str]:
    """What was found, a line each."""
    if report.cases is not None:
        yield f"dataset   {many(report.cases, 'case')}"
    if report.targets:
        where = "; on this fleet --probe asks whether they are served" if report.on_fleet and not report.probes else ""
        yield f"targets   {', '.join(report.targets)}{where}"
    for grader in report.graders:
        calls = f", may call {', '.join(grader.calls)}: at most {many(grader.most_calls, 'call')} a row"
        yield f"grader    {grader.name} ({grader.kind}{calls if grader.calls else ''})"
    if report.variables:
        yield f"variables {', '.join(report.variables)}"
    for probe in report.probes:
        yield f"probe     {_probe(probe)}"
    if report.estimate is not None:
        yield from _estimate(report, report.estimate)
    for problem in report.problems:
        yield f"mend      {problem}"


def _probe(probe: Probe) -> str:
    if probe.error is not None:
        return f"{probe.target} failed{' (charged)' if probe.charged else ''}: {probe.error}"
    usage = probe.token_usage
    tokens = "tokens not told" if usage is None else f"{usage.input}+{usage.output} tokens"
    return f"{probe.target} answered in {probe.seconds:.2f} s, 1 call, {tokens}, {dollars(probe.usd)}"


def _estimate(report: CheckReport, what: Estimate) -> Iterator[str]:
    calls = what.calls
    sizes = " × ".join(
        (many(report.cases or 0, "case"), many(len(report.targets), "target"), many(report.repeats or 1, "repeat"))
    )
    by_graders = calls.most - calls.answers
    yield f"calls     {sizes} = {calls.answers:,} answers" + (
        f", and {'' if calls.typical else 'at most '}{by_graders:,} by graders: {calls.most:,}" if by_graders else ""
    )
    yield f"budget    {_budget(report.max_calls, calls.answers, calls.most)}"
    for name, tokens in what.tokens.items():
        output = "unknown" if tokens.output is None else f"about {tokens.output:,}"
        basis = ", ".join(["4 characters a token", *tokens.basis])
        yield f"tokens    {name}: about {tokens.input:,} in, {output} out ({basis})"
    yield f"cost      {_cost(what)}"


def _cost(what: Estimate) -> str:
    others = [name for name in what.tokens if name not in what.usd_of]
    missing = [*(f"target {name}" for name in others), *(f"what {name} calls" for name in what.left_out)]
    if what.usd is None:
        return "unknown: no price is known for tokens that are"
    without = f", without {', '.join(missing)}" if missing else ""
    return f"about {dollars(what.usd)}{without}"


def _budget(max_calls: int | None, answers: int, most: int) -> str:
    if max_calls is None:
        return f"none is named: {most:,} calls, the most this can need"
    if max_calls < answers:
        return f"{max_calls:,} calls, fewer than the {answers:,} answers: the run will park there"
    short = "" if max_calls >= most else ", fewer than graders may spend: the run parks where they do"
    return f"{max_calls:,} calls{short}"


def _last_line(report: CheckReport, code: int) -> str:
    path = shlex.quote(report.evaluation)
    if code == USAGE:
        return f"exit 2: {many(len(report.problems), 'mistake')} to mend. Then: quintain check {path}"
    if code == ERRORS:
        failed = [one.target for one in report.probes if one.error]
        return f"exit 1: {', '.join(failed)} did not answer. When that is mended: quintain check {path} --probe"
    probed = "" if report.probes else f" To ask each target once: quintain check {path} --probe."
    return f"exit 0: ready.{probed} To run it: quintain run {path}"
