"""Runs the steps of operations on a connection of PostgreSQL, and maps its errors, by SQLSTATE, to the ledger's.

A server that cannot be used raises `BudgetUnavailable`: callers repeat their request. A violated constraint is a
defect and raises `AssertionError`, as with SQLite. An error that is not in the tables is raised unchanged.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from quintain.errors import BadRequest, BudgetUnavailable, ConfigError
from quintain_metadata.store.base import ForEach, Lookup, Returned, Row, SqlProgram, Statement, Step

#: PostgreSQL stores no text with U+0000, and no character outside the database's encoding.
_INVALID_TEXT = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)


@dataclass(frozen=True, slots=True)
class _ServerProblem:
    """A problem of the server and its remedy. ``needs_operator``: waiting does not help, so it fails the start."""

    description: str
    hint: str
    needs_operator: bool = False


_NO_ANSWER = _ServerProblem("it does not answer", "start it, or name the one that runs by QUINTAIN_LEDGER_URL")
_GRANT_RIGHTS = "give its user the rights on the database's schema, or name another by QUINTAIN_LEDGER_URL"

#: By the first two characters of the SQLSTATE.
_PROBLEMS_BY_CLASS: Final[dict[str, _ServerProblem]] = {
    "08": _NO_ANSWER,
    "25": _ServerProblem(
        "it takes no writes", "name the primary, not a standby, by QUINTAIN_LEDGER_URL", needs_operator=True
    ),
    "28": _ServerProblem("it refuses the login", "check user and password in QUINTAIN_LEDGER_URL", needs_operator=True),
    "3D": _ServerProblem("it has no such database", "create it (createdb), or name another", needs_operator=True),
    "40": _ServerProblem("operations deadlock repeatedly", "try again"),
    "42": _ServerProblem("its tables cannot be used", _GRANT_RIGHTS, needs_operator=True),
    "53": _ServerProblem("it has no connection, memory or disk left", "raise max_connections, or free its disk"),
    "55": _ServerProblem("a lock is held for too long", "find its holder in pg_locks"),
    "57": _ServerProblem("it stops, starts or takes too long", "try again; its log says more"),
    "58": _ServerProblem("its operating system reports an error", "its log says more"),
    "XX": _ServerProblem("it has an internal error", "its log says more"),
}

#: SQLSTATEs that differ from their class.
_PROBLEMS_BY_SQLSTATE: Final[dict[str, _ServerProblem]] = {
    # A transaction that was idle for too long, and every statement after it on the same connection.
    "25P02": _NO_ANSWER,
    "25P03": _NO_ANSWER,
}


def problem_of(error: BaseException) -> _ServerProblem | None:
    """Return the problem of the server that this error shows; None for any other error."""
    if isinstance(error, asyncpg.PostgresError):
        sqlstate = error.sqlstate or ""
        return _PROBLEMS_BY_SQLSTATE.get(sqlstate) or _PROBLEMS_BY_CLASS.get(sqlstate[:2])
    if isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        # TimeoutError is an OSError. The two errors of asyncpg mean that the connection ended during a call.
        return _NO_ANSWER
    return None


def translate_error(error: Exception, location: str) -> Exception:
    """Return the error to raise from an operation in place of this one.

    ``location`` is the server without a password.
    """
    if isinstance(error, asyncpg.IntegrityConstraintViolationError):
        return AssertionError(f"an operation broke the ledger's invariant: {_first_line(error)}")
    if isinstance(error, _INVALID_TEXT):
        return BadRequest("A text of this request holds a character that the ledger cannot keep, such as U+0000")
    problem = problem_of(error)
    return error if problem is None else BudgetUnavailable(_message(problem, error, location))


def translate_startup_error(error: Exception, location: str) -> Exception:
    """Return the error to raise from the start in place of this one: `ConfigError` where waiting does not help."""
    if isinstance(error, ValueError):
        # asyncpg could not parse the URL; its message may contain a part of the password.
        return ConfigError(f"The ledger {location} cannot be used: the options in QUINTAIN_LEDGER_URL cannot be parsed")
    problem = problem_of(error)
    if problem is None:
        return error
    kind = ConfigError if problem.needs_operator else BudgetUnavailable
    return kind(_message(problem, error, location))


def _message(problem: _ServerProblem, error: Exception, location: str) -> str:
    return f"The ledger {location} cannot be used: {problem.description} ({_first_line(error)}): {problem.hint}"


def _first_line(error: Exception) -> str:
    """Return the error's class and first line; the lines after it (DETAIL, HINT) contain data of rows."""
    name = type(error).__name__
    text = str(error).partition("\n")[0]
    return f"{name}: {text}" if text else name


Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"  # in quotes: the class is not generic at run time

#: A placeholder, or a quoted string, in which a question mark is no placeholder.
_PLACEHOLDER = re.compile(r"'[^']*'|\?")


async def run_program(connection: Connection, program: SqlProgram[Returned]) -> Returned:
    """Run one operation to its end, on a connection with an open transaction, and return its result."""
    try:
        step = next(program)
        while True:
            step = program.send(await _run_step(connection, step))
    except StopIteration as stop:
        result: Returned = stop.value
        return result


async def _run_step(connection: Connection, step: Step) -> list[Row]:
    match step:
        case Statement(sql, parameters):
            return [tuple(record) for record in await connection.fetch(number_placeholders(sql), *parameters)]
        case Lookup(_, keys):
            return [tuple(record) for record in await connection.fetch(*lookup_query(step))] if keys else []
        case ForEach(sql, all_parameters):
            if all_parameters:
                await connection.executemany(number_placeholders(sql), all_parameters)
            return []


def lookup_query(lookup: Lookup) -> tuple[Any, ...]:
    """Return the SQL of a lookup and its parameters: an array for each column of its keys, and its own."""
    columns = [list(column) for column in zip(*lookup.keys, strict=True)]
    return _lookup_sql(lookup.sql, len(columns)), *columns, *lookup.parameters


@functools.lru_cache(maxsize=256)
def _lookup_sql(sql: str, width: int) -> str:
    names = ", ".join(f"key{number}" for number in range(1, width + 1))
    arrays = ", ".join(["?::text[]"] * width)
    return number_placeholders(f"WITH RECURSIVE wanted ({names}) AS (SELECT * FROM unnest({arrays})) {sql}")


@functools.lru_cache(maxsize=256)
def number_placeholders(sql: str) -> str:
    """Replace the ``?`` placeholders of a statement with ``$1``, ``$2`` and so on."""
    numbers = iter(range(1, sql.count("?") + 1))
    return _PLACEHOLDER.sub(lambda match: f"${next(numbers)}" if match[0] == "?" else match[0], sql)
