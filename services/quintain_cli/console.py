"""Terminal output of commands: data on stdout, everything else on stderr, errors as one sentence and an exit code."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

import typer
from rich.console import Console

from quintain import logs, telemetry
from quintain.contracts.invoke import FaultReply
from quintain.contracts.message import Message
from quintain.contracts.token import mask_tokens
from quintain.errors import BudgetExhausted, ConfigError, Fault, QuintainError, Unauthorized
from quintain.settings import environment, read_log_settings, read_trace_settings


def format_count(number: int, noun: str) -> str:
    """So many of a thing, in words."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


#: The most bytes that are shown of a body that is no text.
MAX_DUMPED_BYTES = 512

_ROW_BYTES = 16


def mask_body(body: bytes) -> bytes:
    """The body without the secrets of the tokens in it."""
    return mask_tokens(body.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def body_to_text(body: bytes) -> str | None:
    """The body as text; None where it is no UTF-8."""
    try:
        return mask_body(body).decode()
    except UnicodeDecodeError:
        return None


def body_to_json(body: bytes) -> dict[str, str]:
    """The body as ``text``, or as ``base64`` where it is no UTF-8."""
    text = body_to_text(body)
    return {"base64": base64.b64encode(mask_body(body)).decode()} if text is None else {"text": text}


def hex_dump(body: bytes, *, max_bytes: int = MAX_DUMPED_BYTES) -> str:
    """The first bytes, sixteen a line: offset, hexadecimal, ASCII; the last line says how many more there are."""
    masked_body = mask_body(body)
    lines = []
    for start in range(0, min(len(masked_body), max_bytes), _ROW_BYTES):
        row = masked_body[start : min(start + _ROW_BYTES, max_bytes)]
        ascii_text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{3 * _ROW_BYTES - 1}}  {ascii_text}")
    if len(masked_body) > max_bytes:
        lines.append(f"and {len(masked_body) - max_bytes} bytes more: --json has them all")
    return "\n".join(lines)


ResultT = TypeVar("ResultT")

#: The libraries that tell of every step they take.
NOISY_LOGGERS = ("aiormq", "aio_pika", "httpx2", "httpcore2", "uvicorn")

EXIT_OK, EXIT_ERRORS, EXIT_USAGE, EXIT_BELOW_THRESHOLD, EXIT_BUDGET_SPENT = 0, 1, 2, 3, 4

#: What to do next about an error, where there is something to say: by its type.
ERROR_HINTS: tuple[tuple[type[QuintainError], str], ...] = (
    (
        Unauthorized,
        "next   set QUINTAIN_SESSION_TOKEN (for sessions: QUINTAIN_ADMIN_TOKEN, as the metadata service has it)",
    ),
    (BudgetExhausted, "next   quintain info shows what is left; an administrator raises it"),
)


def stdout_console() -> Console:
    """Where data goes: plain where it is piped."""
    return Console(highlight=False)


def stderr_console() -> Console:
    """Where words for people go."""
    return Console(stderr=True, highlight=False)


def print_stderr(line: str) -> None:
    """A line for people, as it is: no markup, no wrapping."""
    stderr_console().print(line, markup=False, soft_wrap=True)


def print_json(value: object) -> None:
    """One JSON value on stdout, for programs."""
    data = json.loads(value.to_wire()) if isinstance(value, Message) else value
    # In ASCII: JSON leaves the terminal's second set of controls as they are, and half a surrogate pair is no UTF-8.
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def escape_for_terminal(text: str) -> str:
    """Text of a model for a terminal: what could steer the terminal is shown, not sent."""
    return "".join(char if char in "\n\t" or char.isprintable() else repr(char)[1:-1] for char in text)


def run_command(coroutine: Coroutine[Any, Any, ResultT], *, as_json: bool = False, service: str = "command") -> ResultT:
    """Run a command's work; an error is a sentence on stderr (with ``--json`` an object on stdout) and an exit code.
    Its spans are those of the service."""
    try:
        with contextlib.closing(coroutine), _traced(service):
            return asyncio.run(coroutine)
    except asyncio.CancelledError:
        # Asked to stop before there was anything to drain.
        raise typer.Exit(EXIT_OK) from None
    except KeyboardInterrupt:
        print_stderr("interrupted")
        raise typer.Exit(130) from None
    except QuintainError as error:
        exit_with_error(error, as_json=as_json)


def _traced(service: str) -> contextlib.AbstractContextManager[None]:
    settings = read_trace_settings(environment())
    # The exporter's library is imported only where traces are sent.
    return telemetry.export_spans(service, settings) if settings.export else contextlib.nullcontext()


def exit_with_error(error: QuintainError, *, as_json: bool) -> NoReturn:
    """End the command with this error."""
    if as_json:
        error_fields = (
            FaultReply.from_fault(error)
            if isinstance(error, Fault)
            else {"error": error.message, "code": _error_code(error)}
        )
        print_json(error_fields)
    else:
        print_stderr(f"error  {escape_for_terminal(error.message)}")
        for error_type, hint in ERROR_HINTS:
            if isinstance(error, error_type):
                print_stderr(hint)
    raise typer.Exit(exit_code(error))


def exit_code(error: QuintainError) -> int:
    """``design.md`` §7: 2 what was asked cannot be used, 4 the budget is spent, 1 everything else."""
    if isinstance(error, BudgetExhausted):
        return EXIT_BUDGET_SPENT
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERRORS


def _error_code(error: QuintainError) -> str:
    name = type(error).__name__
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")


def set_up_logging(*, verbose: bool, quiet: bool = False) -> None:
    """Services log to stderr; the wire library's own words only where somebody asked for them. ``quiet`` is for
    commands that show their work themselves: warnings and errors only, unless ``QUINTAIN_LOG_LEVEL`` says otherwise."""
    try:
        log_settings = read_log_settings(environment())
    except ConfigError as error:
        exit_with_error(error, as_json=False)
    default_level = logging.WARNING if quiet else logging.INFO
    logs.configure_logging(
        logging.DEBUG if verbose else log_settings.level or default_level, as_json=log_settings.as_json
    )
    if not verbose:
        for logger_name in (*NOISY_LOGGERS, *(("opentelemetry",) if quiet else ())):
            logging.getLogger(logger_name).setLevel(logging.CRITICAL)
