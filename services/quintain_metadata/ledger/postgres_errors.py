"""Maps PostgreSQL errors, by SQLSTATE, to the ledger's errors. No I/O.

A server that cannot be used raises `BudgetUnavailable`: callers repeat their request. A violated constraint is a
defect and raises `AssertionError`, as with SQLite. An error that is not in the tables is raised unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import asyncpg

from quintain.errors import BadRequest, BudgetUnavailable, ConfigError

#: Errors after which the whole operation is rolled back and run again: a deadlock, a conflict or an outdated plan.
_RETRYABLE = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.InvalidCachedStatementError)

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


def is_retryable(error: BaseException) -> bool:
    """Whether the operation should be run again, at once and from its start."""
    return isinstance(error, _RETRYABLE)


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
