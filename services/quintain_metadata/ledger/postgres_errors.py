"""Maps PostgreSQL errors, by SQLSTATE, to the ledger's errors. No I/O.

A server that cannot be used raises `BudgetUnavailable`: callers repeat their request. A violated constraint is a
defect and raises `AssertionError`, as with SQLite. An error that is not in the tables is raised unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import asyncpg

from quintain.errors import BadRequest, BudgetUnavailable, ConfigError

#: The whole operation is undone and run again: it waited for one that waited for it, or its plan is outdated.
_RETRYABLE = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.InvalidCachedStatementError)

#: PostgreSQL keeps no text with U+0000, and nothing that is not in the database's encoding.
_INVALID_TEXT = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)


@dataclass(frozen=True, slots=True)
class _ServerProblem:
    """What is the matter, and the mend. ``needs_operator``: waiting does not help, so it ends a start."""

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
    "40": _ServerProblem("operations wait for one another again and again", "try again"),
    "42": _ServerProblem("its tables are not to be used", _GRANT_RIGHTS, needs_operator=True),
    "53": _ServerProblem("it has no connection, memory or disk left", "raise max_connections, or free its disk"),
    "55": _ServerProblem("what is asked for is held for too long", "look for what holds it (pg_locks)"),
    "57": _ServerProblem("it stops, starts or takes too long", "try again; its log says more"),
    "58": _ServerProblem("its system fails", "its log says more"),
    "XX": _ServerProblem("it fails", "its log says more"),
}

#: SQLSTATEs that are not what their class is.
_PROBLEMS_BY_SQLSTATE: Final[dict[str, _ServerProblem]] = {
    # A transaction that stood still for too long, and whatever its connection was asked for after.
    "25P02": _NO_ANSWER,
    "25P03": _NO_ANSWER,
}


def is_retryable(error: BaseException) -> bool:
    """Whether the operation is to be run again, at once and from its start."""
    return isinstance(error, _RETRYABLE)


def problem_of(error: BaseException) -> _ServerProblem | None:
    """What this error says about the server; None where it is no trouble of the server's."""
    if isinstance(error, asyncpg.PostgresError):
        sqlstate = error.sqlstate or ""
        return _PROBLEMS_BY_SQLSTATE.get(sqlstate) or _PROBLEMS_BY_CLASS.get(sqlstate[:2])
    if isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        # TimeoutError is an OSError. The client's own two are what it says of a connection that ended under it.
        return _NO_ANSWER
    return None


def translate_error(error: Exception, location: str) -> Exception:
    """What is raised in this error's stead, out of an operation. ``location`` is the server, without a password."""
    if isinstance(error, asyncpg.IntegrityConstraintViolationError):
        return AssertionError(f"an operation broke the ledger's invariant: {_first_line(error)}")
    if isinstance(error, _INVALID_TEXT):
        return BadRequest("A text of this request holds a character that the ledger cannot keep, such as U+0000")
    problem = problem_of(error)
    return error if problem is None else BudgetUnavailable(_message(problem, error, location))


def translate_startup_error(error: Exception, location: str) -> Exception:
    """What is raised in this error's stead while the ledger is opened: `ConfigError` where waiting does not help."""
    if isinstance(error, ValueError):
        # The client could not read the URL; its own words may show a piece of the password.
        return ConfigError(
            f"The ledger {location} cannot be used: the options in QUINTAIN_LEDGER_URL are not to be read"
        )
    problem = problem_of(error)
    if problem is None:
        return error
    kind = ConfigError if problem.needs_operator else BudgetUnavailable
    return kind(_message(problem, error, location))


def _message(problem: _ServerProblem, error: Exception, location: str) -> str:
    return f"The ledger {location} cannot be used: {problem.description} ({_first_line(error)}): {problem.hint}"


def _first_line(error: Exception) -> str:
    """The error's own first line: what follows it (DETAIL, HINT) shows rows."""
    name = type(error).__name__
    text = str(error).partition("\n")[0]
    return f"{name}: {text}" if text else name
