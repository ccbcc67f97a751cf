"""A command at its terminal: data on stdout, all else on stderr, errors with an exit code, and signals that stop it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import json
import logging
import math
import re
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quintain.contracts.credentials import SessionToken, mask_tokens
from quintain.contracts.invoke import FaultReply
from quintain.contracts.message import Message
from quintain.contracts.money import MAX_COST_USD, NO_LIMIT, MaxCostUsd, NoLimit
from quintain.contracts.session import MAX_PAUSE_SECONDS, MAX_WEIGHT, MIN_WEIGHT, Priority
from quintain.errors import BudgetExhausted, ConfigError, Fault, QuintainError, Unauthorized
from quintain.observe import logs
from quintain.settings import environment, read_log_settings, read_trace_settings

#: The seconds of each unit of a duration on the command line.
UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def parse_duration_seconds(text: str) -> float:
    """Parse a duration such as 90s, 10m or 2h to seconds. Raises `typer.BadParameter`."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(s|m|min|h|d|)", text.strip())
    seconds = float(match[1]) * UNIT_SECONDS[match[2]] if match else math.nan
    if not 0 < seconds <= MAX_PAUSE_SECONDS:
        raise typer.BadParameter("a time is a number followed by s, m, h or d, such as 90s or 10m, of one day at most")
    return seconds


def mask_body(body: bytes) -> bytes:
    """Return a message body with the secrets of all tokens masked."""
    return mask_tokens(body.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def body_to_text(body: bytes) -> str | None:
    """Return a message body as text with tokens masked, or None if it is not UTF-8."""
    try:
        return mask_body(body).decode()
    except UnicodeDecodeError:
        return None


def body_to_json(body: bytes) -> dict[str, str]:
    """Return a message body as a JSON object: ``text``, or ``base64`` if it is not UTF-8."""
    text = body_to_text(body)
    return {"base64": base64.b64encode(mask_body(body)).decode()} if text is None else {"text": text}


ResultT = TypeVar("ResultT")

#: The option of every command that prints a result.
AsJson = Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")]

#: The options of commands that open a session.
WeightOption = Annotated[
    int | None,
    typer.Option(
        min=MIN_WEIGHT,
        max=MAX_WEIGHT,
        help="Its weight among those that use the same provider key; by default 10.",
    ),
]


_COST_LIMIT: TypeAdapter[float] = TypeAdapter(MaxCostUsd)


def _read_cost_limit(dollars: str) -> float:
    """Return a limit in money that a user gave. Raises `typer.BadParameter` for one that is none."""
    try:
        return _COST_LIMIT.validate_python(float(dollars))
    except ValueError:
        reason = f"an amount of US dollars above 0, at most {MAX_COST_USD:,}, such as 25 or 0.5"
        raise typer.BadParameter(reason) from None


def _read_changed_cost_limit(dollars: str) -> float | NoLimit:
    """Return a limit in money that may also be taken away. Raises `typer.BadParameter` for one that is none."""
    return NO_LIMIT if dollars == NO_LIMIT else _read_cost_limit(dollars)


MaxCostOption = Annotated[
    float | None,
    typer.Option(
        help="The most that its calls may cost, in US dollars, such as 25; by default no limit.",
        metavar="DOLLARS",
        parser=_read_cost_limit,
    ),
]
RunCostOption = Annotated[
    Any,
    typer.Option(
        help="The most that the run may cost, in US dollars, such as 25, graders included; none: no limit any more.",
        metavar="DOLLARS",
        parser=_read_changed_cost_limit,
    ),
]
PriorityOption = Annotated[
    Priority | None, typer.Option(help="Which calls go first where a provider key is fully used; by default normal.")
]

#: Libraries whose logs are shown only with ``--verbose``.
NOISY_LOGGERS = ("aiormq", "aio_pika", "uvicorn")

EXIT_OK, EXIT_ERRORS, EXIT_USAGE, EXIT_BELOW_THRESHOLD, EXIT_BUDGET_SPENT = 0, 1, 2, 3, 4

#: Of a command that SIGINT (Ctrl-C) ended: 128 and the signal's number.
EXIT_INTERRUPTED = 130


def _hints(error: QuintainError) -> list[str]:
    """What to do about an error, in lines."""
    if isinstance(error, Unauthorized):
        return [f"next   {_refused_token(environment())}"]
    if isinstance(error, BudgetExhausted):
        return ["next   quintain info shows what is left; an administrator can raise the limit"]
    return []


def _refused_token(env: Mapping[str, str]) -> str:
    """Say which tokens are set, without their secrets, and when each is refused."""
    names = [f"QUINTAIN_{kind}_TOKEN{end}" for kind in ("SESSION", "ADMIN") for end in ("", "_FILE")]
    set_names = [name for name in names if env.get(name)]
    try:
        session = f" (session {SessionToken.parse(env.get('QUINTAIN_SESSION_TOKEN')).id})"
    except Unauthorized:
        session = " (not a session's token)"
    told = [name + session * (name == "QUINTAIN_SESSION_TOKEN") for name in set_names]
    return (
        f"the token was refused; set here: {', '.join(told) or 'none, so that of the state folder was sent'}. A "
        "session's token is refused once the session is closed or expired, and by another fleet; for sessions, targets "
        "and pauses QUINTAIN_ADMIN_TOKEN must be that of the metadata service"
    )


def stdout_console() -> Console:
    """Return a console for data, on standard output; without colors if it is not a terminal."""
    return Console(highlight=False, emoji=False)


def stderr_console() -> Console:
    """Return a console for messages to the user, on standard error."""
    return Console(stderr=True, highlight=False, emoji=False)


def print_stderr(line: str) -> None:
    """Print a line on standard error, without markup and without wrapping."""
    stderr_console().print(line, markup=False, soft_wrap=True)


def print_stdout(line: str) -> None:
    """Print a line on standard output, without markup and without wrapping."""
    stdout_console().print(line, markup=False, soft_wrap=True)


def print_json(value: object) -> None:
    """Print one JSON value on standard output."""
    data = json.loads(value.to_wire()) if isinstance(value, Message) else value
    # ASCII only: JSON does not escape C1 control characters, and a lone surrogate cannot be encoded as UTF-8.
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def print_result(result: Message, exit_code: int) -> None:
    """Print a result with the command's exit code, as one JSON object on standard output."""
    print_json({"exitCode": exit_code, **json.loads(result.to_wire())})


def single_line(text: str) -> str:
    """Return untrusted text for one line of a terminal."""
    return escape_for_terminal(text).replace("\n", "\\n").replace("\t", "\\t")


#: How wide a table may be where standard output is no terminal: cells are not wrapped there.
PIPE_WIDTH = 1000


def print_table(rows: Iterable[Sequence[str]], columns: Sequence[str] = ()) -> None:
    """Print rows of untrusted texts without borders, below a heading if ``columns`` are given."""
    table = Table(*columns, show_header=bool(columns), box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*(Text(single_line(cell)) for cell in row))
    console = stdout_console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)


def escape_for_terminal(text: str) -> str:
    """Return untrusted text with Python escapes in place of non-printable characters, except newlines and tabs."""
    return "".join(char if char in "\n\t" or char.isprintable() else repr(char)[1:-1] for char in text)


def run_command(coroutine: Coroutine[Any, Any, ResultT], *, as_json: bool = False, service: str = "command") -> ResultT:
    """Run the coroutine of a command and return its result; convert an error to a message and an exit code.

    The message goes to standard error; with ``as_json`` the error is printed as an object on standard output.
    ``service`` names the service in traces. Raises `typer.Exit` on errors, SIGINT and SIGTERM.
    """
    try:
        with contextlib.closing(coroutine), _traced(service):
            return asyncio.run(coroutine)
    except asyncio.CancelledError:
        # A stop signal arrived before the service was ready.
        raise typer.Exit(EXIT_OK) from None
    except KeyboardInterrupt:
        print_stderr("interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except QuintainError as error:
        exit_with_error(error, as_json=as_json)


def _traced(service: str) -> contextlib.AbstractContextManager[None]:
    settings = read_trace_settings(environment())
    if not settings.export:
        return contextlib.nullcontext()
    # Imported on demand, because the exporter's library is large.
    traced: contextlib.AbstractContextManager[None] = importlib.import_module("quintain.observe.export").export_spans(
        service, settings
    )
    return traced


def exit_with_error(error: QuintainError, *, as_json: bool) -> NoReturn:
    """Print an error and end the command. Raises `typer.Exit`."""
    if as_json:
        error_fields = (
            FaultReply.from_fault(error)
            if isinstance(error, Fault)
            else {"error": error.message, "code": _error_code(error)}
        )
        print_json(error_fields)
    else:
        print_stderr(f"error  {escape_for_terminal(error.message)}")
        for line in _hints(error):
            print_stderr(line)
    raise typer.Exit(exit_code(error))


def exit_code(error: QuintainError) -> int:
    """Return the exit code of an error: 2 for configuration errors, 4 if the budget is spent, else 1."""
    if isinstance(error, BudgetExhausted):
        return EXIT_BUDGET_SPENT
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERRORS


def _error_code(error: QuintainError) -> str:
    name = type(error).__name__
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")


def set_up_logging(*, verbose: bool, quiet: bool = False) -> None:
    """Set up logging to standard error.

    ``verbose`` includes debug logs and those of libraries. ``quiet`` is for commands that show their progress
    themselves: warnings and errors only, unless ``QUINTAIN_LOG_LEVEL`` is set.
    """
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
    if log_settings.as_json and not quiet:
        logs.log_stderr()


class StopSignal:
    """An event that is set when the process is asked to stop."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._is_awaited = False

    async def wait(self) -> None:
        """Wait until a stop is requested."""
        self._is_awaited = True
        await self._requested.wait()

    def request(self) -> bool:
        """Request the stop. Returns False if nothing waits for it yet."""
        self._requested.set()
        return self._is_awaited


@contextlib.asynccontextmanager
async def handle_stop_signals() -> AsyncIterator[StopSignal]:
    """Handle SIGTERM and SIGINT inside the context; yields the `StopSignal` that they set.

    While nothing waits for it, a signal cancels the current task instead.
    """
    loop, task, stop = asyncio.get_running_loop(), asyncio.current_task(), StopSignal()
    assert task is not None

    def on_signal() -> None:
        if not stop.request():
            task.cancel()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, on_signal)
    try:
        yield stop
    finally:
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(signal_number)
