"""What the programs of an evaluation may do, and which variables they read without getting them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from quintain.program import Program
from quintain.program_variables import script_path, withheld_variables
from quintain_runner.spec.environment import GraderEnvironment
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import CommandGrader, FunctionGrader


def unconfined_programs(evaluation: Evaluation) -> list[str]:
    """The programs of an evaluation that run with the user's rights: graders, and the dataset's command."""
    names = [
        f"grader {spec.name}"
        for spec in evaluation.spec.graders
        if isinstance(spec, CommandGrader | FunctionGrader) and spec.run_as is None and spec.sandbox is None
    ]
    dataset = evaluation.spec.dataset
    if dataset.command is not None and dataset.run_as is None and dataset.sandbox is None:
        names.append("the dataset's command")
    return names


def variable_warnings(evaluation: Evaluation, env: Mapping[str, str], passed: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each variable of ``env`` that a script of the evaluation reads and does not get.

    ``passed`` are the variables that every program gets.
    """
    session = GraderEnvironment("").session_variables("")
    dataset = evaluation.spec.dataset
    scripts: list[tuple[str, Path | None, set[str]]] = []
    for index, spec in enumerate(evaluation.spec.graders):
        place = f"graders[{index}] ({spec.name})"
        if isinstance(spec, CommandGrader):
            program = Program(argv=spec.command, env={}, cwd=evaluation.folder / (spec.cwd or "."))
            scripts.append((place, script_path(program), {*spec.env, *spec.env_from}))
        elif isinstance(spec, FunctionGrader):
            module = spec.function.partition(":")[0].replace(".", "/")
            scripts.append((place, evaluation.folder / f"{module}.py", {*spec.env, *spec.env_from}))
    if dataset.command is not None:
        program = Program(argv=dataset.command, env={}, cwd=evaluation.folder)
        scripts.append(("dataset", script_path(program), {*dataset.env, *dataset.env_from}))
    for place, script, own in scripts:
        given = {*passed, *own, *(session if place != "dataset" else ())}
        for name in [] if script is None else withheld_variables(script, given, env):
            yield f"{evaluation.path}: {place}: {script} reads {name}, which it will not get; list it in env_from"
