"""Builds the graders of an evaluation, and fingerprints what decides their verdicts.

A fingerprint is of a grader's specification, the bytes of what it runs, and the fingerprint of who judges. What a
Python program or module imports from its own folders counts with it. Not seen: what else it imports or reads, unless
``depends_on`` names it; the targets that a program calls beside its default one; and Quintain's own built-in graders.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from quintain.config.file_errors import config_error
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
from quintain.errors import ConfigError
from quintain.programs.program import check_rights, program_environment, secrets_of, start_problem
from quintain.programs.sandbox import Confinement, gateway_address
from quintain_runner.files import read_text_file
from quintain_runner.graders.base import GraderRunner
from quintain_runner.graders.builtin import BuiltinGraderRunner, build_comparison
from quintain_runner.graders.combined import CombinedGraderRunner
from quintain_runner.graders.function_worker import FunctionDescription, FunctionRequest
from quintain_runner.graders.judge import JudgeGraderRunner
from quintain_runner.graders.pairwise import PairwiseGraderRunner
from quintain_runner.graders.program import (
    ProgramGraderRunner,
    function_executor,
    line_executor,
    never_executed,
    process_executor,
)
from quintain_runner.graders.similar import SimilarGraderRunner
from quintain_runner.graders.subprocesses import GraderCommand, GraderProcessPool
from quintain_runner.graders.verdict import GraderError
from quintain_runner.spec.asking_graders import JudgeGrader, PairwiseGrader, SimilarGrader
from quintain_runner.spec.builtin_graders import ContainsJsonGrader, JsonSchemaGrader
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.grader_options import KEYS_WITHOUT_EFFECT
from quintain_runner.spec.graders import (
    AllGrader,
    AnyGrader,
    BuiltinGrader,
    CommandGrader,
    FunctionGrader,
    GraderSpec,
    judges_of,
    max_calls_of,
    part_specs,
    parts_of,
)
from quintain_runner.spec.templates import parse_template


async def grader_fingerprints(
    evaluation: Evaluation,
    runners: Sequence[GraderRunner],
    judge_targets: Mapping[str, str | None],
    fingerprints: Mapping[str, str | None],
    env: Mapping[str, str] | None,
) -> dict[str, dict[str, str | None]]:
    """The fingerprints of the graders by name, for each of the targets that ``fingerprints`` has those of.

    One is None if it contains a judge target's and that is not known; without ``env`` those of programs and functions
    are too. Raises `ConfigError` where a file that ``depends_on`` names cannot be read.
    """
    specs = evaluation.graders

    def own_fingerprint(spec: GraderSpec) -> str | None:
        if env is None and isinstance(spec, CommandGrader | FunctionGrader):
            return None
        return _own_fingerprint(spec, evaluation.folder, env or {})

    own = await asyncio.to_thread(lambda: list(map(own_fingerprint, specs)))
    sessionless = {
        runner.name for runner in runners if isinstance(runner, ProgramGraderRunner) and not runner.needs_session
    }
    return {
        target: dict(_for_target(zip(specs, own, strict=True), target, judge_targets, fingerprints, sessionless))
        for target in fingerprints
    }


def unseen_files(evaluation: Evaluation, env: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each grader whose program or module imports what cannot be followed."""
    for index, spec in evaluation.numbered_graders:
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
        if has_judge and (judges := judges_of(spec, target, judge_targets)):
            known = [fingerprints.get(judge) if max_calls_of(spec) else "none" for judge in judges]
            jury = [spec.min_votes] if isinstance(spec, JudgeGrader) and spec.judge_targets else []
            fingerprint = None if None in known else fingerprint_of([own, *known, *jury])
        yield spec.name, fingerprint


def _own_fingerprint(spec: GraderSpec, folder: Path, env: Mapping[str, str]) -> str:
    values: dict[str, object] = spec.model_dump(mode="json", by_alias=True, exclude=set(KEYS_WITHOUT_EFFECT))
    values["depends_on"] = dependency_digests(spec.depends_on, folder)
    if parts := parts_of(spec):
        values["parts"] = [_own_fingerprint(part, folder, env) for part in parts]
    match spec:
        case CommandGrader():
            cwd = folder / (spec.cwd or ".")
            imports = command_imports(spec.command, cwd, {**env, **spec.env})
            values["command"] = [*command_digests(spec.command, cwd, env), *import_digests(imports.files)]
            values.pop("cwd")
        case FunctionGrader():
            digest, imports = module_digests(spec.function, folder)
            values["function"] = [spec.function.partition(":")[2], digest, *import_digests(imports.files)]
        case JudgeGrader(prompt=str() as path) | PairwiseGrader(prompt=str() as path):
            values["prompt"] = file_digest(folder / path)
        case JsonSchemaGrader(json_schema=str() as path) | ContainsJsonGrader(json_schema=str() as path):
            values["schema"] = file_digest(folder / path)
    return fingerprint_of(values)


class FunctionGraders:
    """The processes of function graders that a check starts, and the run that follows uses; ``stack`` ends them."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._started: list[tuple[GraderCommand, GraderProcessPool, FunctionDescription]] = []

    async def start(
        self, command: GraderCommand, stack: AsyncExitStack
    ) -> tuple[GraderProcessPool, FunctionDescription]:
        """Give the processes of a function, and what it says of itself; it is started where it is not yet.

        ``stack`` ends those of a confined one, which are for this use alone. Raises `GraderError`.
        """
        for started, pool, description in self._started:
            if started == command:
                return pool, description
        is_confined = command.confinement.is_confined
        pool = await (stack if is_confined else self._stack).enter_async_context(GraderProcessPool(command))
        reply = await pool.request(FunctionRequest().model_dump_json().encode())
        description = FunctionDescription.model_validate_json(reply)
        if not is_confined:
            self._started.append((command, pool, description))
        return pool, description


async def with_built_graders(
    evaluation: Evaluation,
    env: Mapping[str, str],
    sessionless: frozenset[str] | None = None,
    functions: FunctionGraders | None = None,
) -> tuple[Evaluation, list[str]]:
    """The evaluation, with what its graders said of themselves, and a line for each grader that cannot be built."""
    async with AsyncExitStack() as stack:
        functions = functions or FunctionGraders(stack)
        factory = _GraderFactory(evaluation.folder, env, stack, functions, None, None, sessionless)
        # Whether one that is left out makes calls is recorded too.
        graders, errors = await factory.build_all(replace(evaluation, only_graders=()))
        # Of functions that cannot be imported nobody knows whether they take a session.
        unknown = {
            one.name for one in evaluation.spec.graders if isinstance(one, FunctionGrader) and one.name in errors
        }
        silent = graders_without_session(graders) | unknown
        problems = [errors[one.name] for one in evaluation.graders if one.name in errors]
        return replace(evaluation, graders_without_session=silent), problems


@contextlib.asynccontextmanager
async def open_graders(
    evaluation: Evaluation,
    env: Mapping[str, str],
    *,
    gateway_url: str | None = None,
    output: Path | None = None,
    sessionless: frozenset[str] | None = None,
    functions: FunctionGraders | None = None,
) -> AsyncIterator[tuple[GraderRunner, ...]]:
    """Build the graders of an evaluation, in the order of the file.

    ``env`` is the environment of which their processes get what is allowed; those that are kept running end with the
    ``async with`` block. In a sandbox they reach only ``gateway_url``, and do not see ``output``. With ``sessionless``
    no program is started, because a recording has what it said: those it names make no calls. ``functions`` that run
    already are used. Raises `ConfigError` with one line for each grader that cannot be built.
    """
    async with AsyncExitStack() as stack:
        functions = functions or FunctionGraders(stack)
        factory = _GraderFactory(evaluation.folder, env, stack, functions, gateway_url, output, sessionless)
        graders, errors = await factory.build_all(evaluation)
        if errors:
            raise ConfigError("\n".join(errors.values()))
        yield tuple(graders)


def build_own(spec: GraderSpec, folder: Path = Path()) -> GraderRunner:
    """Build a case's own grader, or another that needs no file but a schema in ``folder``. Raises `ConfigError`."""
    match spec:
        case JudgeGrader():
            return JudgeGraderRunner(spec, spec.instructions or "", spec.fingerprint)
        case SimilarGrader():
            return SimilarGraderRunner(spec)
        case AllGrader() | AnyGrader():
            return CombinedGraderRunner(spec, tuple(map(build_own, part_specs(spec))))
        case _ if isinstance(spec, BuiltinGrader):
            return BuiltinGraderRunner(spec, build_comparison(spec, folder))
        case _:
            raise ConfigError(f"{spec.name}: it is of no kind that can be built here")


@dataclass(frozen=True, slots=True)
class _GraderFactory:
    """Builds graders; the processes of pools end when ``stack`` is closed."""

    folder: Path
    env: Mapping[str, str]
    stack: AsyncExitStack
    functions: FunctionGraders
    gateway_url: str | None
    output: Path | None
    sessionless: frozenset[str] | None

    async def build_all(self, evaluation: Evaluation) -> tuple[list[GraderRunner], dict[str, str]]:
        """Build the graders of an evaluation, and say of each that cannot be built why not, by its name."""
        numbered, graders, errors = evaluation.numbered_graders, list[GraderRunner](), dict[str, str]()
        results = await asyncio.gather(*(self.build(spec) for _, spec in numbered), return_exceptions=True)
        for (index, spec), result in zip(numbered, results, strict=True):
            if isinstance(result, ConfigError):
                errors[spec.name] = f"{evaluation.path}: graders[{index}] ({spec.name}): {result.message}"
            elif isinstance(result, BaseException):
                raise result
            else:
                graders.append(result)
        return graders, errors

    async def build(self, spec: GraderSpec) -> GraderRunner:
        """Build the grader of a specification. Raises `ConfigError`."""
        if not isinstance(spec, CommandGrader | FunctionGrader):
            dependency_digests(spec.depends_on, self.folder)
        match spec:
            case CommandGrader() | FunctionGrader():
                return await self._build_program_or_function(spec)
            case JudgeGrader():
                prompt = self._read_prompt(spec)
                return JudgeGraderRunner(spec, prompt, _own_fingerprint(spec, self.folder, self.env))
            case PairwiseGrader():
                return PairwiseGraderRunner(spec, self._read_prompt(spec))
            case AllGrader() | AnyGrader():
                return CombinedGraderRunner(spec, tuple([await self.build(part) for part in part_specs(spec)]))
            case _:
                return build_own(spec, self.folder)

    async def _build_program_or_function(self, spec: CommandGrader | FunctionGrader) -> ProgramGraderRunner:
        if self.sessionless is not None:
            needs_session = spec.name not in self.sessionless
            return ProgramGraderRunner(spec=spec, execute=never_executed, needs_session=needs_session)
        dependency_digests(spec.depends_on, self.folder)
        return await (self._build_program(spec) if isinstance(spec, CommandGrader) else self._build_function(spec))

    async def _build_program(self, spec: CommandGrader) -> ProgramGraderRunner:
        """Build a command grader, after checking that its command can be started."""
        if spec.cwd is not None and not (self.folder / spec.cwd).is_dir():
            raise ConfigError(f"cwd: there is no folder {self.folder / spec.cwd}")
        command = self._command(spec, spec.command, self.folder / (spec.cwd or "."))
        error = start_problem(command.program)
        if error is not None:
            raise ConfigError(error)
        check_rights(command.program)
        if spec.batch is None:
            return ProgramGraderRunner(spec=spec, execute=process_executor(command), secrets=secrets_of(command.env))
        pool = await self.stack.enter_async_context(GraderProcessPool(command))
        return ProgramGraderRunner(spec=spec, execute=line_executor(pool, command), secrets=secrets_of(command.env))

    async def _build_function(self, spec: FunctionGrader) -> ProgramGraderRunner:
        """Build a function grader: start its process, which imports the function and describes it."""
        # -P: a file in the folder with the name of a standard module must not replace that module.
        argv = (sys.executable, "-P", "-m", "quintain_runner.graders.function_worker", spec.function)
        command = self._command(spec, argv, self.folder)
        check_rights(command.program)
        try:
            pool, description = await self.functions.start(command, self.stack)
        except GraderError as error:
            raise ConfigError(f"function {spec.function}: {error.message}") from None
        if description.error is not None:
            raise ConfigError(f"function {spec.function}: {description.error}")
        return ProgramGraderRunner(
            spec=spec,
            execute=function_executor(pool),
            needs_session=description.wants_session,
            secrets=secrets_of(command.env),
        )

    def _command(self, spec: CommandGrader | FunctionGrader, argv: Sequence[str], folder: Path) -> GraderCommand:
        """The command of a grader, with what it may do. Raises `ConfigError` if it cannot be confined so."""
        command = GraderCommand(
            argv=tuple(argv),
            folder=folder,
            env=program_environment(self.env, env_from=spec.env_from, own=spec.env),
            timeout_seconds=spec.timeout_seconds,
        )
        confinement = Confinement(
            run_as=spec.run_as,
            sandbox=spec.sandbox,
            hidden=() if self.output is None else (self.output,),
            gateway=None if spec.sandbox is None or self.gateway_url is None else gateway_address(self.gateway_url),
        )
        if not confinement.is_confined:
            return command
        confinement.check()
        files_folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="quintain-grader-")))
        confinement.share(files_folder)
        packages = Path(__file__).parents[2]
        confinement = replace(confinement, read=(self.folder, folder, packages, files_folder))
        return replace(command, confinement=confinement, files_folder=files_folder)

    def _read_prompt(self, spec: JudgeGrader | PairwiseGrader) -> str:
        """Read the instructions of a judge; none where it has none of its own."""
        if spec.prompt is None:
            return (spec.instructions if isinstance(spec, JudgeGrader) else None) or ""
        prompt = read_text_file(self.folder, spec.prompt)
        if not prompt.strip():
            raise ConfigError(f"{self.folder / spec.prompt}: it is empty; write instructions for the judge")
        try:
            parse_template(prompt)
        except ValueError as error:
            raise config_error(self.folder / spec.prompt, [str(error)]) from None
        return prompt


def graders_without_session(graders: Iterable[GraderRunner]) -> frozenset[str]:
    """The names of the graders that make no calls: built-in ones except judges, and functions without a session."""
    return frozenset(
        grader.name
        for grader in graders
        if (not isinstance(grader, ProgramGraderRunner) and not max_calls_of(grader.spec))
        or (isinstance(grader, ProgramGraderRunner) and not grader.needs_session)
    )
