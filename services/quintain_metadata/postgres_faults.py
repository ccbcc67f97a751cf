"""What an error of PostgreSQL means to whoever asked the ledger: a table by SQLSTATE, and no I/O.

A server that cannot be used is `BudgetUnavailable`: nothing may be spent, and everybody repeats what they asked. A
constraint that refused is a defect of ours, as over SQLite. What no line of the table names is a defect too and is
raised as it came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import asyncpg

from quintain.errors import BadRequest, BudgetUnavailable, ConfigError

#: The whole operation is undone and run again: it waited for one that waited for it, or its plan is outdated.
_REPEATED = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.InvalidCachedStatementError)

#: PostgreSQL keeps no text with U+0000, and nothing that is not in the database's encoding.
_NO_TEXT = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What is the matter, and the mend. ``by_operator``: waiting does not help, so it ends a start."""

    what: str
    mend: str
    by_operator: bool = False


_SILENT = _Trouble("it does not answer", "start it, or name the one that runs by QUINTAIN_LEDGER_URL")
_RIGHTS = "give its user the rights on the database's schema, or name another by QUINTAIN_LEDGER_URL"

#: By the first two characters of the SQLSTATE.
_BY_CLASS: Final[dict[str, _Trouble]] = {
    "08": _SILENT,
    "25": _Trouble("it takes no writes", "name the primary, not a standby, by QUINTAIN_LEDGER_URL", by_operator=True),
    "28": _Trouble("it refuses the login", "check user and password in QUINTAIN_LEDGER_URL", by_operator=True),
    "3D": _Trouble("it has no such database", "create it (createdb), or name another", by_operator=True),
    "40": _Trouble("operations wait for one another again and again", "try again"),
    "42": _Trouble("its tables are not to be used", _RIGHTS, by_operator=True),
    "53": _Trouble("it has no connection, memory or disk left", "raise max_connections, or free its disk"),
    "55": _Trouble("what is asked for is held for too long", "look for what holds it (pg_locks)"),
    "57": _Trouble("it stops, starts or takes too long", "try again; its log says more"),
    "58": _Trouble("its system fails", "its log says more"),
    "XX": _Trouble("it fails", "its log says more"),
}

#: SQLSTATEs that are not what their class is.
_BY_STATE: Final[dict[str, _Trouble]] = {
    # A transaction that stood still for too long, and whatever its connection was asked for after.
    "25P02": _SILENT,
    "25P03": _SILENT,
}


def is_repeated(error: BaseException) -> bool:
    """Whether the operation is to be run again, at once and from its start."""
    return isinstance(error, _REPEATED)


def trouble_of(error: BaseException) -> _Trouble | None:
    """What this error says about the server; None where it is no trouble of the server's."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return _BY_STATE.get(state) or _BY_CLASS.get(state[:2])
    if isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        # TimeoutError is an OSError. The client's own two are what it says of a connection that ended under it.
        return _SILENT
    return None


def told(error: Exception, place: str) -> Exception:
    """What is raised in this error's stead, out of an operation. ``place`` is the server, without a password."""
    if isinstance(error, asyncpg.IntegrityConstraintViolationError):
        return AssertionError(f"an operation broke the ledger's invariant: {_words(error)}")
    if isinstance(error, _NO_TEXT):
        return BadRequest("A text of this request holds a character that the ledger cannot keep, such as U+0000")
    trouble = trouble_of(error)
    return error if trouble is None else BudgetUnavailable(_sentence(trouble, error, place))


def told_at_start(error: Exception, place: str) -> Exception:
    """What is raised in this error's stead while the ledger is opened: `ConfigError` where waiting does not help."""
    if isinstance(error, ValueError):
        # The client could not read the URL; its own words may show a piece of the password.
        return ConfigError(f"The ledger {place} cannot be used: the options in QUINTAIN_LEDGER_URL are not to be read")
    trouble = trouble_of(error)
    if trouble is None:
        return error
    kind = ConfigError if trouble.by_operator else BudgetUnavailable
    return kind(_sentence(trouble, error, place))


def _sentence(trouble: _Trouble, error: Exception, place: str) -> str:
    return f"The ledger {place} cannot be used: {trouble.what} ({_words(error)}): {trouble.mend}"


def _words(error: Exception) -> str:
    """The error's own first line: what follows it (DETAIL, HINT) shows rows."""
    name = type(error).__name__
    said = str(error).partition("\n")[0]
    return f"{name}: {said}" if said else name
