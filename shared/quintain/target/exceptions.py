"""Serialises exceptions across the wire, keeping their class where both sides know it.

A built-in class, or one of superred's, is restored as itself; any other becomes a `RemoteTargetError` with the class
name in its message, and a note that says so. An exception that the controller raised in reply to an event carries a
token, and is restored as the same object.
"""

from __future__ import annotations

import builtins
import importlib
import secrets
import traceback
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import JsonValue

from quintain.contracts.credentials import mask_secrets
from quintain.contracts.remote_target import RemoteFailure, TagPath
from quintain.contracts.values import replace_surrogates
from quintain.errors import RemoteTargetError
from quintain.target.codec import decode_value, encode_value
from quintain.target.type_registry import safe_str

#: Attribute of an exception with the token of the original object on the other side.
_TOKEN_ATTRIBUTE = "__quintain_token__"  # noqa: S105 -- the name of an attribute

#: Tracebacks are shortened to their last so many characters.
MAX_TRACEBACK_LENGTH = 8_000


#: The built-in exceptions that keep their class, by name. A future cannot raise the two others.
BUILTIN_EXCEPTIONS: Mapping[str, type[Exception]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and kind not in {StopIteration, StopAsyncIteration}
    and kind.__name__ == name
}

#: The arguments of an exception are sent up to so many characters.
MAX_ARGUMENTS_LENGTH = 64_000


def to_failure(error: BaseException, secrets: Collection[str] = ()) -> RemoteFailure:
    """Return the wire format of an exception, with the ``secrets`` masked in it. Never raises."""
    # str() of a KeyError is the repr of its key; restoring it needs the key itself.
    message_value = error.args[0] if isinstance(error, KeyError) and error.args else error
    name = type(error).__name__
    return RemoteFailure(
        # A class of the same name as a built-in one is another class.
        type=name if BUILTIN_EXCEPTIONS.get(name, type(error)) is type(error) else f"{type(error).__module__}.{name}",
        message=mask_secrets(safe_str(message_value), secrets),
        traceback=mask_secrets(safe_str(error, _format_traceback), secrets),
        values=_superred_usage(error),
        token=getattr(error, _TOKEN_ATTRIBUTE, None),
        arguments=_arguments(error, secrets),
        exceptions=[to_failure(each, secrets) for each in error.exceptions]
        if isinstance(error, ExceptionGroup)
        else None,
    )


def _arguments(error: BaseException, secrets: Collection[str]) -> str | None:
    """Return the arguments of a built-in exception; None where they are too long, or have a secret in them."""
    arguments = error.args
    if isinstance(error, ExceptionGroup):
        arguments = arguments[:1]
    elif isinstance(error, OSError) and error.filename is not None:
        filenames = (error.filename,) if error.filename2 is None else (error.filename, None, error.filename2)
        arguments = (error.errno, error.strerror, *filenames)
    text = encode_value([replace_surrogates(each) if isinstance(each, str) else each for each in arguments])
    return (
        text
        if type(error) is BUILTIN_EXCEPTIONS.get(type(error).__name__)
        and len(text) <= MAX_ARGUMENTS_LENGTH
        and mask_secrets(text, secrets) == text
        else None
    )


def _format_traceback(error: object) -> str:
    assert isinstance(error, BaseException)
    return "".join(traceback.format_exception(error))[-MAX_TRACEBACK_LENGTH:]


def _superred_usage(error: BaseException) -> dict[str, JsonValue] | None:
    """Return the usage of superred's BudgetExhaustedError; None for other attributes of that name."""
    usage = getattr(error, "usage", None)
    calls, cost = getattr(usage, "calls", None), getattr(usage, "cost", None)
    return {"calls": calls, "cost": cost} if isinstance(calls, int) and isinstance(cost, int | float) else None


def from_failure(failure: RemoteFailure, where: str = "the hosted target") -> BaseException:
    """Return the exception described by a failure, with the other side's traceback as a note.

    ``where`` is the other side, for that note.
    """
    try:
        error = _known_exception(failure, where)
    except Exception:
        # No class of ours, superred is not installed, or the arguments are not those of its class.
        error = _unknown_exception(failure)
    if failure.token is not None:
        setattr(error, _TOKEN_ATTRIBUTE, failure.token)
    if failure.traceback:
        error.add_note(f"Raised in {where}:\n{failure.traceback}")
    return error


def _known_exception(failure: RemoteFailure, where: str) -> BaseException:
    """Return an exception of the class that a failure names. Raises any `Exception` where that cannot be made."""
    kind: Any
    decoded: Any
    if failure.type == "NotApplicable":
        kind, decoded = importlib.import_module("superred.core.interfaces.task").NotApplicable, [failure.message]
    elif failure.type == "BudgetExhaustedError":
        types = importlib.import_module("superred.core.types")
        usage = types.LLMUsage(**{"calls": 0, "cost": 0.0, **(failure.values or {})})
        kind, decoded = types.BudgetExhaustedError, [failure.message, usage]
    else:
        kind = BUILTIN_EXCEPTIONS[failure.type]
        decoded = [failure.message] if failure.arguments is None else decode_value(failure.arguments, _no_tag)
        if failure.exceptions is not None:
            decoded = [*decoded, [from_failure(each, where) for each in failure.exceptions]]
    error: BaseException = kind(*decoded)
    # `OSError` chooses a subclass by its number.
    return error if type(error) is kind else _unknown_exception(failure)


def _no_tag(path: TagPath) -> Any:
    raise ValueError(f"The tag {path} is no argument of an exception")


def _unknown_exception(failure: RemoteFailure) -> BaseException:
    """Return the exception for a class that is unknown here."""
    error = RemoteTargetError(f"{failure.type}: {failure.message}")
    error.add_note(f"Its class {failure.type} is not known in this process: RemoteTargetError stands for it")
    return error


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
