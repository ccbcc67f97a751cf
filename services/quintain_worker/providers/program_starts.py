"""Starts programs of targets, checks those that are our own, and says why one did not start."""

from __future__ import annotations

import tempfile
from typing import Any

from pydantic_core import from_json

from quintain.contracts.credentials import mask_secrets
from quintain.errors import ConfigError, ProviderFailed, TargetUnavailable
from quintain.programs.line_program import LineProgram, ProgramEnded
from quintain.programs.processes import run_to_file
from quintain.programs.program import (
    CannotStart,
    Program,
    ProgramNotExecutable,
    ProgramNotFound,
    TooMuchOutput,
    describe_end,
    secrets_of,
)
from quintain_worker.providers.provider import Billing, ProviderFailure
from quintain_worker.providers.quoting import quoted

#: How much of the end of a program's stderr is quoted, in characters, and of the reason why one did not start.
MAX_STDERR_LENGTH, MAX_REASON_LENGTH = 300, 500


def quoted_end(stderr: str, secrets: tuple[str, ...]) -> str:
    """Return the end of what a program wrote to stderr."""
    return quoted(stderr, secrets, length=MAX_STDERR_LENGTH, is_end=True)


def start_failure(name: str, command: str, error: CannotStart) -> ProviderFailure:
    """Return the failure of a program that could not be started."""
    message = f"{name}: {command} cannot be started: {error.reason}"
    if isinstance(error, (ProgramNotFound, ProgramNotExecutable)):
        return ProviderFailure(TargetUnavailable(message), Billing.UNBILLED)
    # The machine lacks memory, processes or file descriptors.
    return ProviderFailure(ProviderFailed(message, charged=False), Billing.UNBILLED, retryable=True)


def not_ready_failure(name: str, error: ConfigError, secrets: tuple[str, ...]) -> ProviderFailure:
    """Return the failure of a program that did not say that it is ready."""
    reason = quoted(error.message, secrets, length=MAX_REASON_LENGTH)
    return ProviderFailure(TargetUnavailable(f"{name}: the program did not start: {reason}"), Billing.UNBILLED)


async def read_ready(started: LineProgram, program: Program) -> dict[str, Any]:
    """Wait until a program of our own says that it is ready, and return what it says then.

    Raises `ConfigError` with the reason why it is not.
    """
    secrets = secrets_of(program.env)
    try:
        line = await started.read()
    except ProgramEnded as ended:
        raise ConfigError(describe_end(ended.exit_code, quoted_end(started.stderr, secrets))) from None
    except TooMuchOutput:
        line = b""
    return _ready_message(line, "its first line cannot be read", secrets)


def check_ready(program: Program) -> dict[str, Any]:
    """Run a program of our own that ends once it is ready, and return what it says then.

    Blocks. Raises `ConfigError` with the reason why it is not.
    """
    secrets = secrets_of(program.env)
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        try:
            exit_code = run_to_file(program, stdout=stdout, stderr=stderr)
        except CannotStart as error:
            raise ConfigError(f"it cannot be started: {error.reason}") from None
        stdout.seek(0)
        stderr.seek(0)
        printed, errors = stdout.read(), stderr.read().decode(errors="replace")
    return _ready_message(printed, describe_end(exit_code, quoted_end(errors.strip(), secrets)), secrets)


def _ready_message(line: bytes, otherwise: str, secrets: tuple[str, ...]) -> dict[str, Any]:
    """Return the message of a line, which says that the program is ready; ``otherwise`` is why there is none."""
    try:
        message: dict[str, Any] = from_json(line)
    except ValueError:
        raise ConfigError(otherwise) from None
    if message["type"] != "ready":
        raise ConfigError(mask_secrets(message["message"], secrets))
    return message
