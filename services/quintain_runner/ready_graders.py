"""From what a file says of its graders to graders that can grade: what is wrong with one is said before any call."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from quintain.errors import ConfigError
from quintain_runner.beside import read_beside
from quintain_runner.builtin import Comparing, compare_of
from quintain_runner.evaluation import Evaluation
from quintain_runner.function_host import Description, Question
from quintain_runner.grader_process import GraderCommand, mistake_in
from quintain_runner.grader_specs import CommandGrader, FunctionGrader, GraderSpec, JudgeGrader, UndecidedGrader
from quintain_runner.grading import Grader
from quintain_runner.judging import Judging
from quintain_runner.programs import Executing, by_function, by_lines, by_process, program_of
from quintain_runner.verdict import GraderError
from quintain_runner.warm_pool import WarmPool


@contextlib.asynccontextmanager
async def prepared_graders(evaluation: Evaluation, env: Mapping[str, str]) -> AsyncIterator[tuple[Grader, ...]]:
    """The graders of an evaluation, in its order; ``env`` is what their processes inherit.

    Raises `ConfigError` with every mistake. What is kept warm ends with it.
    """
    async with AsyncExitStack() as stack:
        making = _Making(evaluation.folder, env, stack)
        specs = evaluation.spec.graders
        made = await asyncio.gather(*(making.ready(spec) for spec in specs), return_exceptions=True)
        mistakes: list[str] = []
        for index, (spec, one) in enumerate(zip(specs, made, strict=True)):
            if isinstance(one, ConfigError):
                mistakes.append(f"{evaluation.path}: graders[{index}] ({spec.name}): {one.message}")
            elif isinstance(one, BaseException):
                raise one
        if mistakes:
            raise ConfigError("\n".join(mistakes))
        yield tuple(one for one in made if not isinstance(one, BaseException))


@dataclass(frozen=True, slots=True)
class _Making:
    folder: Path
    env: Mapping[str, str]
    stack: AsyncExitStack

    async def ready(self, spec: GraderSpec) -> Grader:
        match spec:
            case CommandGrader():
                return await self._program(spec)
            case FunctionGrader():
                return await self._function(spec)
            case JudgeGrader():
                return Judging(spec, self._prompt(spec))
            case UndecidedGrader():
                raise ConfigError("it is of no kind")
            case _:
                return Comparing(spec.name, compare_of(spec, self.folder))

    async def _program(self, spec: CommandGrader) -> Executing:
        if spec.cwd is not None and not (self.folder / spec.cwd).is_dir():
            raise ConfigError(f"cwd: there is no folder {self.folder / spec.cwd}")
        command = program_of(spec, self.folder, self.env)
        mistake = mistake_in(command)
        if mistake is not None:
            raise ConfigError(mistake)
        if spec.batch is None:
            return Executing(spec=spec, execute=by_process(spec, self.folder, self.env))
        pool = await self.stack.enter_async_context(WarmPool(command))
        return Executing(spec=spec, execute=by_lines(pool))

    async def _function(self, spec: FunctionGrader) -> Executing:
        command = GraderCommand(
            # -P: a file of the folder named as one of Python's own modules is no reason to fail.
            argv=(sys.executable, "-P", "-m", "quintain_runner.function_host", spec.function),
            folder=self.folder,
            env=self.env,
            timeout_seconds=spec.timeout_seconds,
        )
        pool = await self.stack.enter_async_context(WarmPool(command))
        try:
            said = Description.model_validate_json(await pool.ask(Question().model_dump_json().encode()))
        except GraderError as error:
            raise ConfigError(f"function {spec.function}: {error.message}") from None
        if said.error is not None:
            raise ConfigError(f"function {spec.function}: {said.error}")
        return Executing(spec=spec, execute=by_function(pool), needs_session=said.wants_session)

    def _prompt(self, spec: JudgeGrader) -> str:
        prompt = read_beside(self.folder, spec.prompt)
        if not prompt.strip():
            raise ConfigError(f"{self.folder / spec.prompt}: it is empty; write what the judge is to look for")
        return prompt
