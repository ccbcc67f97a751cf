"""The command provider: starts a program for each call, with its files in a temporary folder."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from quintain.config.program_targets import PLACEHOLDERS, CommandTarget
from quintain.contracts.credentials import mask_secrets
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ProviderFailed, ReplyTooLarge, TimedOut
from quintain.programs.processes import run_program
from quintain.programs.program import (
    CannotStart,
    Finished,
    Program,
    ProgramTimedOut,
    TooMuchOutput,
    describe_end,
    program_environment,
    secrets_of,
)
from quintain.programs.sandbox import Confinement
from quintain_worker.providers.agents.coding_agents import PRESET_READERS
from quintain_worker.providers.agents.lines import parse_output
from quintain_worker.providers.agents.program import (
    AgentProgramProvider,
    agent_of,
    check_confinement,
    program_confinement,
)
from quintain_worker.providers.agents.session import AgentModels
from quintain_worker.providers.conversation import ignored_settings, prompts_of
from quintain_worker.providers.program_starts import start_failure
from quintain_worker.providers.provider import Billing, OnText, ProviderAnswer, ProviderContext, ProviderFailure

#: The largest answer, in bytes.
MAX_ANSWER_BYTES = 8 * 1024 * 1024

#: How much of the end of a failed program's stderr is quoted, in characters.
_MAX_QUOTED_LENGTH = 300


def command_provider(
    name: str, target: CommandTarget, context: ProviderContext
) -> CommandProvider | AgentProgramProvider:
    """Create the command provider of this target. Raises `ConfigError` if this machine cannot confine its program."""
    check_confinement(name, target, context)
    if not target.is_agent:
        return CommandProvider(name, target, context)
    models = AgentModels.of_target(name, target.child_session, context)
    agent = agent_of(target, context, target.command_line)
    if target.preset is not None:
        program = replace(agent.program, env={**target.session_variables, **agent.program.env})
        agent = replace(agent, program=program, one_turn=True, read_line=PRESET_READERS[target.preset])
    return AgentProgramProvider(name, agent, models)


@dataclass(frozen=True, slots=True)
class _CallFiles:
    """The files of one call, in a temporary folder."""

    folder: Path
    prompt: str
    system_prompt: str

    def path(self, name: str) -> Path:
        # File names are fixed: no part of a path comes from the request.
        return self.folder / f"{name}.txt"

    def write(self, confinement: Confinement) -> None:
        confinement.share(self.folder)
        self.path("prompt_file").write_text(self.prompt, encoding="utf-8", errors="surrogatepass")
        self.path("system_prompt_file").write_text(self.system_prompt, encoding="utf-8", errors="surrogatepass")
        for name in ("prompt_file", "system_prompt_file"):
            confinement.share(self.path(name))

    def fill_placeholders(self, argument: str, names: tuple[str, ...]) -> str:
        for name in names:
            argument = argument.replace(f"{{{name}}}", str(self.path(name)))
        return argument


class CommandProvider:
    """Runs the configured program for each call.

    The prompt is in ``{prompt_file}``, or else on stdin; the system prompt in ``{system_prompt_file}``, or else before
    the prompt; the answer in ``{output_file}``, or else on stdout.
    """

    def __init__(self, name: str, target: CommandTarget, context: ProviderContext) -> None:
        self._name, self._target = name, target
        self._cwd = context.folder / (target.cwd or ".")
        self._env = program_environment(context.env, env_from=target.env_from, own=target.env)
        self._confinement = program_confinement(target, context.folder)
        self._link_flag = os.O_NOFOLLOW if self._confinement.is_confined else 0
        command_line = "\n".join(target.command)
        self._placeholders = tuple(name for name in PLACEHOLDERS if f"{{{name}}}" in command_line)

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Run the program and return its answer, within ``timeout_seconds``. Raises `ProviderFailure`.

        ``on_text`` is never called: the output counts only once the program has exited with 0.
        """
        ignored = ignored_settings(request.settings, f"{self._name}, a command,")
        prompt, system_prompt = prompts_of(request, separate_system="system_prompt_file" in self._placeholders)
        with TemporaryDirectory(prefix="quintain-", ignore_cleanup_errors=True) as folder:
            files = _CallFiles(Path(folder), prompt, system_prompt)
            # Not in a thread: cancelled, it would go on writing into a folder that is being deleted.
            files.write(self._confinement)
            finished = await self._run(files, timeout_seconds)
            if finished.exit_code != 0:
                stderr = finished.stderr[-_MAX_QUOTED_LENGTH:]
                raise self._failure(describe_end(finished.exit_code, stderr))
            output = finished.stdout
            if "output_file" in self._placeholders:
                output = await asyncio.to_thread(self._read_output_file, files.path("output_file"))
        text = output.decode(errors="replace")
        answer = ProviderAnswer(text=text) if self._target.output_format == "text" else self._parse_output(text)
        return dataclasses.replace(answer, ignored=ignored)

    async def close(self) -> None:
        """Do nothing: no resource is held between calls."""

    async def _run(self, files: _CallFiles, timeout_seconds: float) -> Finished:
        program = Program(
            argv=[files.fill_placeholders(argument, self._placeholders) for argument in self._target.command],
            cwd=self._cwd,
            env=self._env,
            confinement=replace(self._confinement, write=(files.folder,)),
        )
        stdin = b"" if "prompt_file" in self._placeholders else files.prompt.encode(errors="surrogatepass")
        try:
            return await run_program(
                program,
                stdin=stdin,
                stdout_limit=MAX_ANSWER_BYTES,
                timeout_seconds=timeout_seconds,
                idle_seconds=self._target.idle_seconds,
            )
        except ProgramTimedOut:
            idle = self._target.idle_seconds
            silence = "" if idle is None else f", or wrote nothing for {idle:g} s"
            failure = TimedOut(f"{self._name}: the program did not end within {timeout_seconds:g} s{silence}")
            raise ProviderFailure(failure, Billing.UNKNOWN) from None
        except TooMuchOutput:
            raise self._too_large_failure() from None
        except CannotStart as error:
            raise start_failure(self._name, self._target.command[0], error) from None

    def _read_output_file(self, path: Path) -> bytes:
        try:
            # Without following a link: a program with fewer rights must not make this process read another file.
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | self._link_flag), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or (self._link_flag and status.st_nlink > 1):
                    raise self._failure("exit code 0, and {output_file} is no file of its own")
                output = file.read(MAX_ANSWER_BYTES + 1)
        except OSError:
            raise self._failure("exit code 0, and no {output_file} was written") from None
        if len(output) > MAX_ANSWER_BYTES:
            raise self._too_large_failure()
        return output

    def _parse_output(self, text: str) -> ProviderAnswer:
        try:
            return parse_output(text)
        except ValueError as error:
            words = mask_secrets(str(error), secrets_of(self._env))
            raise self._failure(f"exit code 0, and the answer cannot be used: {words}") from None

    def _failure(self, message: str) -> ProviderFailure:
        return ProviderFailure(ProviderFailed(f"{self._name}: {message}", charged=True), Billing.BILLED)

    def _too_large_failure(self) -> ProviderFailure:
        failure = ReplyTooLarge(f"{self._name}: the answer is larger than {MAX_ANSWER_BYTES // 1024**2} MiB")
        return ProviderFailure(failure, Billing.BILLED)
