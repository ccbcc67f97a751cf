"""What an error of PostgreSQL means to whoever asked the ledger."""

from __future__ import annotations

import asyncpg
import pytest

from quintain.errors import BadRequest, BudgetUnavailable, ConfigError
from quintain_metadata.postgres_faults import is_repeated, told, told_at_start, trouble_of

PLACE = "postgresql://me@db/ledger"

AWAY = [
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

FOR_THE_OPERATOR = [
    asyncpg.InvalidPasswordError("password authentication failed"),
    asyncpg.InvalidCatalogNameError("no such database"),
    asyncpg.InsufficientPrivilegeError("permission denied for schema public"),
    asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction"),
]


@pytest.mark.parametrize("error", [*AWAY, *FOR_THE_OPERATOR], ids=lambda error: type(error).__name__)
def test_a_server_that_cannot_be_used_is_an_answer_that_may_be_asked_again(error: Exception) -> None:
    meant = told(error, PLACE)
    assert isinstance(meant, BudgetUnavailable)
    assert meant.retryable
    assert not meant.charged
    assert meant.message.startswith(f"The ledger {PLACE} cannot be used: ")
    assert not is_repeated(error)


@pytest.mark.parametrize("error", AWAY, ids=lambda error: type(error).__name__)
def test_at_a_start_what_may_pass_is_no_mistake_of_the_operators(error: Exception) -> None:
    assert isinstance(told_at_start(error, PLACE), BudgetUnavailable)


@pytest.mark.parametrize("error", FOR_THE_OPERATOR, ids=lambda error: type(error).__name__)
def test_at_a_start_what_does_not_pass_is_the_operators_to_mend(error: Exception) -> None:
    assert isinstance(told_at_start(error, PLACE), ConfigError)


@pytest.mark.parametrize(
    "error",
    [asyncpg.DeadlockDetectedError("circle"), asyncpg.SerializationError("again")],
    ids=lambda error: type(error).__name__,
)
def test_an_operation_that_stood_in_anothers_way_is_repeated_and_at_last_given_up(error: Exception) -> None:
    assert is_repeated(error)
    assert isinstance(told(error, PLACE), BudgetUnavailable)


def test_a_constraint_that_refused_is_a_defect() -> None:
    meant = told(asyncpg.CheckViolationError('violates check constraint "session_check"'), PLACE)
    assert isinstance(meant, AssertionError)
    assert "session_check" in str(meant)


def test_a_text_that_cannot_be_kept_is_the_askers() -> None:
    assert isinstance(told(asyncpg.CharacterNotInRepertoireError("invalid byte sequence"), PLACE), BadRequest)


@pytest.mark.parametrize("error", [asyncpg.DataError("out of range"), BadRequest("no"), KeyError("x")])
def test_what_is_no_trouble_of_the_servers_is_raised_as_it_came(error: Exception) -> None:
    assert trouble_of(error) is None
    assert told(error, PLACE) is error


def test_rows_that_an_error_shows_are_not_told() -> None:
    error = asyncpg.DiskFullError("no space left\nDETAIL:  Failing row contains (secret)")
    assert "secret" not in str(told(error, PLACE))
