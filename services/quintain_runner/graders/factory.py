"""Builds the graders of an evaluation and reports every configuration error before the first call."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from quintain.config.fingerprint import dependency_digests
from quintain.errors import ConfigError
from quintain.programs.program import check_rights, program_environment, start_problem
from quintain.programs.sandbox import Confinement, gateway_address
from quintain_runner.graders.base import GraderRunner
from quintain_runner.graders.builtin import BuiltinGraderRunner, build_comparison
from quintain_runner.graders.function_worker import FunctionDescription, FunctionRequest
from quintain_runner.graders.judge import JudgeGraderRunner
from quintain_runner.graders.process import GraderCommand, GraderProcessPool
from quintain_runner.graders.program import (
    ProgramGraderRunner,
    function_executor,
    line_executor,
    process_executor,
)
from quintain_runner.graders.verdict_parser import GraderError
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.files import read_text_file
from quintain_runner.spec.graders import (
    BuiltinGrader,
    CommandGrader,
    FunctionGrader,
    GraderSpec,
    InvalidGrader,
    JudgeGrader,
)


class UnavailableGraders(ConfigError):
    """Graders whose program, module, prompt or dependency cannot be found or used, with the ``reasons`` by name."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("\n".join(reasons.values()))
        self.reasons = dict(reasons)


@contextlib.asynccontextmanager
async def open_graders(
    evaluation: Evaluation, env: Mapping[str, str], *, gateway_url: str | None = None, output: Path | None = None
) -> AsyncIterator[tuple[GraderRunner, ...]]:
    """Build the graders of an evaluation, in the order of the file, without those that are known to be unavailable.

    ``env`` is the environment of which their processes get what is allowed; those that are kept running end with the
    ``async with`` block. In a sandbox they reach only ``gateway_url``, and do not see ``output``. Raises `ConfigError`
    with one line for each grader that cannot be built: `UnavailableGraders` if files are the reason for all of them.
    """
    async with AsyncExitStack() as stack:
        factory = _GraderFactory(evaluation.folder, env, stack, gateway_url, output)
        specs = [spec for spec in evaluation.spec.graders if spec.name not in evaluation.unavailable_graders]
        results = await asyncio.gather(*(factory.build(spec) for spec in specs), return_exceptions=True)
        errors: dict[str, str] = {}
        for spec, result in zip(specs, results, strict=True):
            if isinstance(result, ConfigError):
                place = f"{evaluation.path}: graders[{evaluation.spec.graders.index(spec)}] ({spec.name})"
                errors[spec.name] = f"{place}: {result.message}"
            elif isinstance(result, BaseException):
                raise result
        if any(isinstance(spec, BuiltinGrader | InvalidGrader) for spec in specs if spec.name in errors):
            raise ConfigError("\n".join(errors.values()))
        if errors:
            raise UnavailableGraders(errors)
        yield tuple(result for result in results if not isinstance(result, BaseException))


@dataclass(frozen=True, slots=True)
class _GraderFactory:
    """Builds graders; the processes of pools end when ``stack`` is closed."""

    folder: Path
    env: Mapping[str, str]
    stack: AsyncExitStack
    gateway_url: str | None
    output: Path | None

    async def build(self, spec: GraderSpec) -> GraderRunner:
        """Build the grader of a specification. Raises `ConfigError`."""
        dependency_digests(spec.depends_on, self.folder)
        match spec:
            case CommandGrader():
                return await self._build_program(spec)
            case FunctionGrader():
                return await self._build_function(spec)
            case JudgeGrader():
                return JudgeGraderRunner(spec, self._read_prompt(spec))
            case InvalidGrader():
                raise ConfigError("it has no valid kind")
            case _:
                return BuiltinGraderRunner(spec.name, build_comparison(spec, self.folder))

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
            return ProgramGraderRunner(spec=spec, execute=process_executor(command))
        pool = await self.stack.enter_async_context(GraderProcessPool(command))
        return ProgramGraderRunner(spec=spec, execute=line_executor(pool, command))

    async def _build_function(self, spec: FunctionGrader) -> ProgramGraderRunner:
        """Build a function grader: start its process, which imports the function and describes it."""
        # -P: a file in the folder with the name of a standard module must not replace that module.
        argv = (sys.executable, "-P", "-m", "quintain_runner.graders.function_worker", spec.function)
        command = self._command(spec, argv, self.folder)
        check_rights(command.program)
        pool = await self.stack.enter_async_context(GraderProcessPool(command))
        try:
            description = FunctionDescription.model_validate_json(
                await pool.request(FunctionRequest().model_dump_json().encode())
            )
        except GraderError as error:
            raise ConfigError(f"function {spec.function}: {error.message}") from None
        if description.error is not None:
            raise ConfigError(f"function {spec.function}: {description.error}")
        return ProgramGraderRunner(spec=spec, execute=function_executor(pool), needs_session=description.wants_session)

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

    def _read_prompt(self, spec: JudgeGrader) -> str:
        """Read the instructions of a judge."""
        prompt = read_text_file(self.folder, spec.prompt)
        if not prompt.strip():
            raise ConfigError(f"{self.folder / spec.prompt}: it is empty; write instructions for the judge")
        return prompt
