"""Serialises exceptions across the wire, keeping their class where both sides know it.

A known class is restored as itself; any other becomes a `RemoteTargetError` with the class name in its message. An
exception that the controller raised in reply to an event carries a token, and is restored as the same object.
"""

from __future__ import annotations

import importlib
import secrets
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import JsonValue

from quintain.contracts.remote_target import RemoteFailure
from quintain.errors import RemoteTargetError
from quintain.target.serialization import safe_str

#: Attribute of an exception with the token of the original object on the other side.
_TOKEN_ATTRIBUTE = "__quintain_token__"  # noqa: S105 -- the name of an attribute

#: Tracebacks are shortened to their last so many characters.
MAX_TRACEBACK_LENGTH = 8_000


def _superred_builder(name: str) -> Callable[[RemoteFailure], BaseException]:
    def build(failure: RemoteFailure) -> BaseException:
        try:
            types = importlib.import_module("superred.core.types")
            task = importlib.import_module("superred.core.interfaces.task")
        except ImportError:
            return unknown_exception(failure)
        if name == "NotApplicable":
            return _as_exception(task.NotApplicable(failure.message))
        values = failure.values or {}
        usage = types.LLMUsage(calls=values.get("calls", 0), cost=values.get("cost", 0.0))
        return _as_exception(types.BudgetExhaustedError(failure.message, usage))

    return build


def _as_exception(error: Any) -> BaseException:
    assert isinstance(error, BaseException)
    return error


#: Constructors of the exceptions that keep their class, by class name.
EXCEPTION_BUILDERS: Mapping[str, Callable[[RemoteFailure], BaseException]] = {
    **{
        kind.__name__: lambda failure, kind=kind: kind(failure.message)  # type: ignore[misc]
        for kind in (ValueError, TypeError, KeyError, RuntimeError, NotImplementedError, TimeoutError, LookupError)
    },
    "BudgetExhaustedError": _superred_builder("BudgetExhaustedError"),
    "NotApplicable": _superred_builder("NotApplicable"),
}


def to_failure(error: BaseException) -> RemoteFailure:
    """Return the wire format of an exception. Never raises."""
    # str() of a KeyError is the repr of its key; restoring it needs the key itself.
    message_value = error.args[0] if isinstance(error, KeyError) and error.args else error
    return RemoteFailure(
        type=type(error).__name__,
        message=safe_str(message_value),
        traceback=safe_str(error, _format_traceback),
        values=_superred_usage(error),
        token=getattr(error, _TOKEN_ATTRIBUTE, None),
    )


def _format_traceback(error: object) -> str:
    assert isinstance(error, BaseException)
    return "".join(traceback.format_exception(error))[-MAX_TRACEBACK_LENGTH:]


def _superred_usage(error: BaseException) -> dict[str, JsonValue] | None:
    """Return the usage of superred's BudgetExhaustedError; None for other attributes of that name."""
    usage = getattr(error, "usage", None)
    calls, cost = getattr(usage, "calls", None), getattr(usage, "cost", None)
    return {"calls": calls, "cost": cost} if isinstance(calls, int) and isinstance(cost, int | float) else None


def from_failure(failure: RemoteFailure) -> BaseException:
    """Return the exception described by a failure, with the other side's traceback as a note."""
    error = EXCEPTION_BUILDERS.get(failure.type, unknown_exception)(failure)
    if failure.token is not None:
        setattr(error, _TOKEN_ATTRIBUTE, failure.token)
    if failure.traceback:
        error.add_note(f"Raised in the hosted target:\n{failure.traceback}")
    return error


def unknown_exception(failure: RemoteFailure) -> BaseException:
    """Return the exception for a class that is unknown here."""
    return RemoteTargetError(f"{failure.type}: {failure.message}")


class RemoteExceptions:
    """Exceptions sent to the other side, so that the same objects are raised when they come back."""

    def __init__(self) -> None:
        self._sent: dict[str, BaseException] = {}

    def to_failure(self, error: BaseException) -> RemoteFailure:
        """Return the wire format of an exception, with a new token."""
        token = secrets.token_hex(8)
        self._sent[token] = error
        return to_failure(error).model_copy(update={"token": token})

    def from_failure(self, failure: RemoteFailure) -> BaseException:
        """Return the exception described by a failure: the original object if it came from here."""
        original = self._sent.get(failure.token or "")
        return from_failure(failure) if original is None else original
