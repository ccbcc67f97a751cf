"""Fingerprints of graders: their specification, the bytes of what they run, and the fingerprint of who judges.

What a Python program or module imports from its own folders counts with it. Not seen: what else it imports or reads,
unless ``depends_on`` names it; the targets that a program calls beside its default one; and Quintain's own built-in
graders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from quintain.config.fingerprint import (
    command_digests,
    dependency_digests,
    file_digest,
    fingerprint_of,
    import_digests,
    module_digests,
    unseen_warnings,
)
from quintain.config.python_imports import command_imports
from quintain_runner.graders.base import GraderRunner, judge_target_of
from quintain_runner.graders.program import ProgramGraderRunner
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import (
    CommandGrader,
    FunctionGrader,
    GraderSpec,
    JsonSchemaGrader,
    JudgeGrader,
    max_calls_of,
)

#: The keys of a specification that change no verdict, and those that are replaced by what they name.
_KEYS_LEFT_OUT = frozenset(
    {
        "target",
        "timeout_seconds",
        "judge_target",
        "depends_on",
        "command",
        "function",
        "prompt",
        "weight",
        "reduce",
        "run_as",
        "sandbox",
    }
)


async def grader_fingerprints(
    evaluation: Evaluation,
    runners: Sequence[GraderRunner],
    judge_targets: Mapping[str, str | None],
    fingerprints: Mapping[str, str | None],
    env: Mapping[str, str],
) -> dict[str, dict[str, str | None]]:
    """The fingerprints of the graders by name, for each of the targets that ``fingerprints`` has those of.

    One is None if its grader is unavailable, or if it contains a judge target's and that is not known. Raises
    `ConfigError` where a file that ``depends_on`` names cannot be read.
    """
    specs = evaluation.spec.graders
    own = await asyncio.to_thread(
        lambda: [
            None if spec.name in evaluation.unavailable_graders else _own_fingerprint(spec, evaluation.folder, env)
            for spec in specs
        ]
    )
    sessionless = {
        runner.name for runner in runners if isinstance(runner, ProgramGraderRunner) and not runner.needs_session
    }
    return {
        target: dict(_for_target(zip(specs, own, strict=True), target, judge_targets, fingerprints, sessionless))
        for target in fingerprints
    }


def unseen_files(evaluation: Evaluation, env: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each grader whose program or module imports what cannot be followed."""
    for index, spec in enumerate(evaluation.spec.graders):
        place = f"{evaluation.path}: graders[{index}] ({spec.name})"
        if isinstance(spec, CommandGrader):
            imports = command_imports(spec.command, evaluation.folder / (spec.cwd or "."), {**env, **spec.env})
            yield from unseen_warnings(place, imports, spec.depends_on)
        elif isinstance(spec, FunctionGrader):
            yield from unseen_warnings(place, module_digests(spec.function, evaluation.folder)[1], spec.depends_on)


def _for_target(
    graders: Iterable[tuple[GraderSpec, str | None]],
    target: str,
    judge_targets: Mapping[str, str | None],
    fingerprints: Mapping[str, str | None],
    sessionless: set[str],
) -> Iterable[tuple[str, str | None]]:
    for spec, own in graders:
        fingerprint = own
        has_judge = own is not None and spec.name not in sessionless
        if isinstance(spec, CommandGrader | FunctionGrader | JudgeGrader) and has_judge:
            judge = fingerprints.get(judge_target_of(spec, target, judge_targets)) if max_calls_of(spec) else "none"
            fingerprint = None if judge is None else fingerprint_of([own, judge])
        yield spec.name, fingerprint


def _own_fingerprint(spec: GraderSpec, folder: Path, env: Mapping[str, str]) -> str:
    values: dict[str, object] = spec.model_dump(mode="json", by_alias=True, exclude=set(_KEYS_LEFT_OUT))
    values["depends_on"] = dependency_digests(spec.depends_on, folder)
    match spec:
        case CommandGrader():
            cwd = folder / (spec.cwd or ".")
            imports = command_imports(spec.command, cwd, {**env, **spec.env})
            values["command"] = [*command_digests(spec.command, cwd, env), *import_digests(imports.files)]
            values.pop("cwd")
        case FunctionGrader():
            digest, imports = module_digests(spec.function, folder)
            values["function"] = [spec.function.partition(":")[2], digest, *import_digests(imports.files)]
        case JudgeGrader():
            values["prompt"] = file_digest(folder / spec.prompt)
        case JsonSchemaGrader(json_schema=str() as path):
            values["schema"] = file_digest(folder / path)
    return fingerprint_of(values)
