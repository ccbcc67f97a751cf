"""Exceptions that cross the wire and keep their class, as far as both sides know it.

Whoever drives a target tells a `ValueError` from a spent budget by the class, so a class that both sides have comes
back as itself; any other becomes a `RemoteTargetError` that names it. What the controller's side raised in answer to
an event goes out with a token, and comes back as the very same object.
"""

from __future__ import annotations

import importlib
import secrets
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import JsonValue

from quintain.contracts.hosted import RemoteFailure
from quintain.errors import RemoteTargetError
from quintain.target.text import spoken

#: Under this name an exception carries its token home: the one who raised it first wants the same object back.
_TOKEN = "__quintain_token__"  # noqa: S105 -- the name of an attribute

#: A traceback is cut to its last so many characters.
MOST_TRACEBACK = 8_000


def _superred(name: str) -> Callable[[RemoteFailure], BaseException]:
    def build(failure: RemoteFailure) -> BaseException:
        try:
            types = importlib.import_module("superred.core.types")
            task = importlib.import_module("superred.core.interfaces.task")
        except ImportError:
            return unknown(failure)
        if name == "NotApplicable":
            return _made(task.NotApplicable(failure.message))
        values = failure.values or {}
        usage = types.LLMUsage(calls=values.get("calls", 0), cost=values.get("cost", 0.0))
        return _made(types.BudgetExhaustedError(failure.message, usage))

    return build


def _made(error: Any) -> BaseException:
    assert isinstance(error, BaseException)
    return error


#: What keeps its class, by name.
KNOWN: Mapping[str, Callable[[RemoteFailure], BaseException]] = {
    **{
        kind.__name__: lambda failure, kind=kind: kind(failure.message)  # type: ignore[misc]
        for kind in (ValueError, TypeError, KeyError, RuntimeError, NotImplementedError, TimeoutError, LookupError)
    },
    "BudgetExhaustedError": _superred("BudgetExhaustedError"),
    "NotApplicable": _superred("NotApplicable"),
}


def failure_of(error: BaseException) -> RemoteFailure:
    """The exception as it travels. Never raises."""
    # A KeyError's text is the repr of its key: the key itself is what makes another one.
    words = error.args[0] if isinstance(error, KeyError) and error.args else error
    return RemoteFailure(
        type=type(error).__name__,
        message=spoken(words),
        traceback=spoken(error, _told),
        values=_usage(error),
        token=getattr(error, _TOKEN, None),
    )


def _told(error: object) -> str:
    assert isinstance(error, BaseException)
    return "".join(traceback.format_exception(error))[-MOST_TRACEBACK:]


def _usage(error: BaseException) -> dict[str, JsonValue] | None:
    """What superred's exhausted budget was used for; nothing of what others call so."""
    usage = getattr(error, "usage", None)
    calls, cost = getattr(usage, "calls", None), getattr(usage, "cost", None)
    return {"calls": calls, "cost": cost} if isinstance(calls, int) and isinstance(cost, int | float) else None


def raised(failure: RemoteFailure) -> BaseException:
    """The exception of a failure: its own class where it is known, with the other side's traceback as a note."""
    error = KNOWN.get(failure.type, unknown)(failure)
    if failure.token is not None:
        setattr(error, _TOKEN, failure.token)
    if failure.traceback:
        error.add_note(f"Raised in the hosted target:\n{failure.traceback}")
    return error


def unknown(failure: RemoteFailure) -> BaseException:
    """An exception of a class that this side does not have."""
    return RemoteTargetError(f"{failure.type}: {failure.message}")


class Errands:
    """Exceptions of this side that went out to the other, to be raised again here as the same objects."""

    def __init__(self) -> None:
        self._sent: dict[str, BaseException] = {}

    def send(self, error: BaseException) -> RemoteFailure:
        """The exception as it travels, with a token of its own."""
        token = secrets.token_hex(8)
        self._sent[token] = error
        return failure_of(error).model_copy(update={"token": token})

    def back(self, failure: RemoteFailure) -> BaseException:
        """The exception that a failure stands for: the very same one where it began here."""
        mine = self._sent.get(failure.token or "")
        return raised(failure) if mine is None else mine
