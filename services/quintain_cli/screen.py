"""What commands print: data on stdout, everything else on stderr, and every error as one sentence."""

from __future__ import annotations

import asyncio
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
from quintain.errors import BudgetExhausted, ConfigError, Fault, QuintainError, Unauthorized
from quintain.settings import environment, read_log_settings, read_trace_settings

Returned = TypeVar("Returned")

#: The libraries that tell of every step they take.
NOISY = ("aiormq", "aio_pika", "httpx2", "httpcore2", "uvicorn")

OK, ERRORS, USAGE, BELOW_THRESHOLD, BUDGET_SPENT = 0, 1, 2, 3, 4

#: What to do next about an error, where there is something to say: by its type.
NEXT: tuple[tuple[type[QuintainError], str], ...] = (
    (
        Unauthorized,
        "next   set QUINTAIN_SESSION_TOKEN (for sessions: QUINTAIN_ADMIN_TOKEN, as the metadata service has it)",
    ),
    (BudgetExhausted, "next   quintain info shows what is left; an administrator raises it"),
)


def out() -> Console:
    """Where data goes: plain where it is piped."""
    return Console(highlight=False)


def err() -> Console:
    """Where words for people go."""
    return Console(stderr=True, highlight=False)


def tell(line: str) -> None:
    """A line for people, as it is: no markup, no wrapping."""
    err().print(line, markup=False, soft_wrap=True)


def print_json(value: object) -> None:
    """One JSON value on stdout, for programs."""
    data = json.loads(value.to_wire()) if isinstance(value, Message) else value
    # In ASCII: JSON leaves the terminal's second set of controls as they are, and half a surrogate pair is no UTF-8.
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def plain(text: str) -> str:
    """Text of a model for a terminal: what could steer the terminal is shown, not sent."""
    return "".join(char if char in "\n\t" or char.isprintable() else repr(char)[1:-1] for char in text)


def run_command(work: Coroutine[Any, Any, Returned], *, as_json: bool = False, service: str = "command") -> Returned:
    """Run a command's work; an error is a sentence on stderr (with ``--json`` an object on stdout) and an exit code.
    Its spans are those of the service."""
    try:
        with contextlib.closing(work), _traced(service):
            return asyncio.run(work)
    except asyncio.CancelledError:
        # Asked to stop before there was anything to drain.
        raise typer.Exit(OK) from None
    except KeyboardInterrupt:
        tell("interrupted")
        raise typer.Exit(130) from None
    except QuintainError as error:
        fail(error, as_json=as_json)


def _traced(service: str) -> contextlib.AbstractContextManager[None]:
    settings = read_trace_settings(environment())
    # The exporter's library is imported only where traces are sent.
    return telemetry.exporting(service, settings) if settings.export else contextlib.nullcontext()


def fail(error: QuintainError, *, as_json: bool) -> NoReturn:
    """End the command with this error."""
    if as_json:
        said = FaultReply.of(error) if isinstance(error, Fault) else {"error": error.message, "code": _code(error)}
        print_json(said)
    else:
        tell(f"error  {plain(error.message)}")
        for kind, advice in NEXT:
            if isinstance(error, kind):
                tell(advice)
    raise typer.Exit(exit_code(error))


def exit_code(error: QuintainError) -> int:
    """``design.md`` §7: 2 what was asked cannot be used, 4 the budget is spent, 1 everything else."""
    if isinstance(error, BudgetExhausted):
        return BUDGET_SPENT
    return USAGE if isinstance(error, ConfigError) else ERRORS


def _code(error: QuintainError) -> str:
    name = type(error).__name__
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")


def set_up_logging(*, verbose: bool, quiet: bool = False) -> None:
    """Services log to stderr; the wire library's own words only where somebody asked for them. ``quiet`` is for
    commands that show their work themselves: warnings and errors only, unless ``QUINTAIN_LOG_LEVEL`` says otherwise."""
    try:
        said = read_log_settings(environment())
    except ConfigError as error:
        fail(error, as_json=False)
    usual = logging.WARNING if quiet else logging.INFO
    logs.set_up(logging.DEBUG if verbose else said.level or usual, as_json=said.as_json)
    if not verbose:
        for noisy in (*NOISY, *(("opentelemetry",) if quiet else ())):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)
