"""A program as a target: started once per call, with its files in a private folder of that call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from quintain.config import CommandTarget
from quintain.config.targets import PLACEHOLDERS
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ProviderFailed, ReplyTooLarge, TargetUnavailable, TimedOut
from quintain.process import (
    CannotStart,
    Finished,
    Program,
    ProgramNotExecutable,
    ProgramNotFound,
    ProgramTimedOut,
    TooMuchOutput,
    run_program,
)
from quintain_worker.port import Answer, Billing, Heard, ProviderFailure
from quintain_worker.providers.build import Surroundings
from quintain_worker.providers.conversation import refuse_settings, turns_of
from quintain_worker.providers.printed import printed_answer

#: An answer may be this large, in bytes.
MOST_BYTES = 8 * 1024 * 1024

#: This much of a failed program's stderr is quoted, in characters.
_QUOTED = 300


def command_provider(name: str, target: CommandTarget, surroundings: Surroundings) -> CommandProvider:
    """The provider of this target."""
    return CommandProvider(name, target, surroundings)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call's folder and what is in it."""

    folder: Path
    prompt: str
    system_prompt: str

    def path(self, name: str) -> Path:
        # Named by us alone: nothing that a request says is ever part of a path.
        return self.folder / f"{name}.txt"

    def write(self) -> None:
        self.path("prompt_file").write_text(self.prompt, encoding="utf-8", errors="surrogatepass")
        self.path("system_prompt_file").write_text(self.system_prompt, encoding="utf-8", errors="surrogatepass")

    def fill(self, argument: str, names: tuple[str, ...]) -> str:
        for name in names:
            argument = argument.replace(f"{{{name}}}", str(self.path(name)))
        return argument


class CommandProvider:
    """Runs the program of its configuration. The prompt is in ``{prompt_file}``, or else on stdin; the system
    prompt in ``{system_prompt_file}``, or else before the prompt; the answer in ``{output_file}``, or else on stdout.
    """

    def __init__(self, name: str, target: CommandTarget, surroundings: Surroundings) -> None:
        self._name, self._target = name, target
        self._cwd = surroundings.folder / (target.cwd or ".")
        self._env: Mapping[str, str] = {**surroundings.env, **target.env}
        whole = "\n".join(target.command)
        self._uses = tuple(name for name in PLACEHOLDERS if f"{{{name}}}" in whole)

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        """The program's answer, within the timeout; nobody hears it before: what a program prints is an answer only
        once the program has ended well. Raises `ProviderFailure`.
        """
        refuse_settings(request.settings, honoured=(), who=f"{self._name}, a command,")
        prompt, system_prompt = _prompts(request, apart="system_prompt_file" in self._uses)
        with TemporaryDirectory(prefix="quintain-", ignore_cleanup_errors=True) as folder:
            call = _Call(Path(folder), prompt, system_prompt)
            # Here and now: a thread, cut off by a cancel, would write into a folder that is being cleared.
            call.write()
            finished = await self._run(call, timeout_seconds)
            if finished.exit_code != 0:
                quoted = finished.stderr.decode(errors="replace").strip()[-_QUOTED:]
                raise self._failure(f"exit code {finished.exit_code}: {quoted}")
            said = finished.stdout
            if "output_file" in self._uses:
                said = await asyncio.to_thread(self._read, call.path("output_file"))
        text = said.decode(errors="replace")
        return Answer(text=text) if self._target.output_format == "text" else self._printed(text)

    async def close(self) -> None:
        """Nothing is held between calls."""

    async def _run(self, call: _Call, timeout_seconds: float) -> Finished:
        program = Program(
            argv=[call.fill(argument, self._uses) for argument in self._target.command], cwd=self._cwd, env=self._env
        )
        stdin = b"" if "prompt_file" in self._uses else call.prompt.encode(errors="surrogatepass")
        try:
            return await run_program(program, stdin=stdin, stdout_limit=MOST_BYTES, timeout_seconds=timeout_seconds)
        except ProgramTimedOut:
            failure = TimedOut(f"{self._name}: the program did not end within {timeout_seconds:g} s")
            raise ProviderFailure(failure, Billing.UNKNOWN) from None
        except TooMuchOutput:
            raise self._too_large() from None
        except CannotStart as error:
            raise self._cannot_start(error) from None

    def _read(self, path: Path) -> bytes:
        if not path.is_file():
            raise self._failure("exit code 0, and no {output_file} was written")
        with path.open("rb") as file:
            said = file.read(MOST_BYTES + 1)
        if len(said) > MOST_BYTES:
            raise self._too_large()
        return said

    def _printed(self, text: str) -> Answer:
        try:
            return printed_answer(text)
        except ValueError as error:
            raise self._failure(f"exit code 0, and the answer cannot be used: {error}") from None

    def _failure(self, what: str) -> ProviderFailure:
        return ProviderFailure(ProviderFailed(f"{self._name}: {what}", charged=True), Billing.BILLED)

    def _too_large(self) -> ProviderFailure:
        failure = ReplyTooLarge(f"{self._name}: the answer is larger than {MOST_BYTES // 1024**2} MiB")
        return ProviderFailure(failure, Billing.BILLED)

    def _cannot_start(self, error: CannotStart) -> ProviderFailure:
        what = f"{self._name}: {self._target.command[0]} cannot be started: {error.reason}"
        if isinstance(error, (ProgramNotFound, ProgramNotExecutable)):
            return ProviderFailure(TargetUnavailable(what), Billing.UNBILLED)
        # The machine is short of something: memory, processes, open files.
        return ProviderFailure(ProviderFailed(what, charged=False), Billing.UNBILLED, again=True)


def _prompts(request: InvokeRequest, *, apart: bool) -> tuple[str, str]:
    """The prompt and the system prompt: one question as it is, several turns as ``role: text`` each."""
    turns = turns_of(request)
    system = "\n\n".join(turn.text for turn in turns if turn.role == "system") if apart else ""
    shown = [turn for turn in turns if not (apart and turn.role == "system")]
    if len(shown) == 1:
        return shown[0].text, system
    return "\n\n".join(f"{turn.role}: {turn.text}" for turn in shown), system
