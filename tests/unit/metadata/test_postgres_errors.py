"""What an error of PostgreSQL means to whoever asked the ledger."""

from __future__ import annotations

import asyncpg
import pytest

from quintain.errors import BadRequest, BudgetUnavailable, ConfigError
from quintain_metadata.store.postgres_connection import (
    problem_of,
    translate_error,
    translate_startup_error,
)

PLACE = "postgresql://me@db/ledger"

TEMPORARY_ERRORS = [
    ConnectionRefusedError(111, "refused"),
    TimeoutError(),
    asyncpg.ConnectionDoesNotExistError("gone"),
    asyncpg.InterfaceError("connection is closed"),
    asyncpg.AdminShutdownError("terminating"),
    asyncpg.CannotConnectNowError("starting up"),
    asyncpg.TooManyConnectionsError("sorry, too many clients already"),
    asyncpg.DiskFullError("no space left"),
    asyncpg.QueryCanceledError("statement timeout"),
    asyncpg.LockNotAvailableError("lock timeout"),
    asyncpg.IdleInTransactionSessionTimeoutError("idle"),
    asyncpg.InternalServerError("broken page"),
]

PERMANENT_ERRORS = [
    asyncpg.InvalidPasswordError("password authentication failed"),
    asyncpg.InvalidCatalogNameError("no such database"),
    asyncpg.InsufficientPrivilegeError("permission denied for schema public"),
    asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction"),
]


@pytest.mark.parametrize(
    ("error", "at_start"),
    [(error, BudgetUnavailable) for error in TEMPORARY_ERRORS] + [(error, ConfigError) for error in PERMANENT_ERRORS],
    ids=lambda value: type(value).__name__,
)
def test_a_server_that_cannot_be_used_may_be_asked_again_but_what_does_not_pass_is_the_operators_to_mend_at_a_start(
    error: Exception, at_start: type[Exception]
) -> None:
    meant = translate_error(error, PLACE)
    assert isinstance(meant, BudgetUnavailable)
    assert (meant.retryable, meant.charged) == (True, None)
    assert PLACE in meant.message
    assert isinstance(translate_startup_error(error, PLACE), at_start)


def test_a_constraint_that_refused_is_a_defect() -> None:
    meant = translate_error(asyncpg.CheckViolationError('violates check constraint "session_check"'), PLACE)
    assert isinstance(meant, AssertionError)
    assert "session_check" in str(meant)


def test_a_text_that_cannot_be_kept_is_the_askers() -> None:
    assert isinstance(
        translate_error(asyncpg.CharacterNotInRepertoireError("invalid byte sequence"), PLACE), BadRequest
    )


@pytest.mark.parametrize("error", [asyncpg.DataError("out of range"), BadRequest("no"), KeyError("x")])
def test_what_is_no_trouble_of_the_servers_is_raised_as_it_came(error: Exception) -> None:
    assert problem_of(error) is None
    assert translate_error(error, PLACE) is error


def test_rows_that_an_error_shows_are_not_told() -> None:
    error = asyncpg.DiskFullError("no space left\nDETAIL:  Failing row contains (secret)")
    assert "secret" not in str(translate_error(error, PLACE))
