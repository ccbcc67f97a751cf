"""Builds the graders of an evaluation and reports every configuration error before the first call."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from quintain.errors import ConfigError
from quintain_runner.graders.base import GraderRunner
from quintain_runner.graders.builtin import BuiltinGraderRunner, build_comparison
from quintain_runner.graders.function_worker import FunctionDescription, FunctionRequest
from quintain_runner.graders.judge import JudgeGraderRunner
from quintain_runner.graders.process import GraderCommand, command_error
from quintain_runner.graders.process_pool import GraderProcessPool
from quintain_runner.graders.program import (
    ProgramGraderRunner,
    function_executor,
    grader_command,
    line_executor,
    process_executor,
)
from quintain_runner.graders.verdict_parser import GraderError
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.files import read_text_file
from quintain_runner.spec.graders import CommandGrader, FunctionGrader, GraderSpec, InvalidGrader, JudgeGrader


@contextlib.asynccontextmanager
async def open_graders(evaluation: Evaluation, env: Mapping[str, str]) -> AsyncIterator[tuple[GraderRunner, ...]]:
    """The graders of an evaluation, in its order; ``env`` is what their processes inherit.

    Raises `ConfigError` with every mistake. What is kept warm ends with it.
    """
    async with AsyncExitStack() as stack:
        factory = _GraderFactory(evaluation.folder, env, stack)
        specs = evaluation.spec.graders
        results = await asyncio.gather(*(factory.build(spec) for spec in specs), return_exceptions=True)
        errors: list[str] = []
        for index, (spec, one) in enumerate(zip(specs, results, strict=True)):
            if isinstance(one, ConfigError):
                errors.append(f"{evaluation.path}: graders[{index}] ({spec.name}): {one.message}")
            elif isinstance(one, BaseException):
                raise one
        if errors:
            raise ConfigError("\n".join(errors))
        yield tuple(one for one in results if not isinstance(one, BaseException))


@dataclass(frozen=True, slots=True)
class _GraderFactory:
    folder: Path
    env: Mapping[str, str]
    stack: AsyncExitStack

    async def build(self, spec: GraderSpec) -> GraderRunner:
        match spec:
            case CommandGrader():
                return await self._build_program(spec)
            case FunctionGrader():
                return await self._build_function(spec)
            case JudgeGrader():
                return JudgeGraderRunner(spec, self._read_prompt(spec))
            case InvalidGrader():
                raise ConfigError("it is of no kind")
            case _:
                return BuiltinGraderRunner(spec.name, build_comparison(spec, self.folder))

    async def _build_program(self, spec: CommandGrader) -> ProgramGraderRunner:
        if spec.cwd is not None and not (self.folder / spec.cwd).is_dir():
            raise ConfigError(f"cwd: there is no folder {self.folder / spec.cwd}")
        command = grader_command(spec, self.folder, self.env)
        error = command_error(command)
        if error is not None:
            raise ConfigError(error)
        if spec.batch is None:
            return ProgramGraderRunner(spec=spec, execute=process_executor(spec, self.folder, self.env))
        pool = await self.stack.enter_async_context(GraderProcessPool(command))
        return ProgramGraderRunner(spec=spec, execute=line_executor(pool))

    async def _build_function(self, spec: FunctionGrader) -> ProgramGraderRunner:
        command = GraderCommand(
            # -P: a file of the folder named as one of Python's own modules is no reason to fail.
            argv=(sys.executable, "-P", "-m", "quintain_runner.graders.function_worker", spec.function),
            folder=self.folder,
            env=self.env,
            timeout_seconds=spec.timeout_seconds,
        )
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

    def _read_prompt(self, spec: JudgeGrader) -> str:
        prompt = read_text_file(self.folder, spec.prompt)
        if not prompt.strip():
            raise ConfigError(f"{self.folder / spec.prompt}: it is empty; write what the judge is to look for")
        return prompt
