"""Exceptions that cross: their class where both sides have it, their words, and home again as the same object."""

from __future__ import annotations

import pytest

from quintain.contracts.remote_target import RemoteFailure
from quintain.errors import RemoteTargetError
from quintain.target.exceptions import (
    BUILTIN_EXCEPTIONS,
    MAX_TRACEBACK_LENGTH,
    RemoteExceptions,
    from_failure,
    to_failure,
)


def over_the_wire(failure: RemoteFailure) -> RemoteFailure:
    return RemoteFailure.from_wire(failure.to_wire())


#: An exception of each built-in class; those that take more than words have what they take.
SPECIAL = {
    UnicodeDecodeError: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    UnicodeEncodeError: UnicodeEncodeError("ascii", "ä", 0, 1, "ordinal not in range"),
    UnicodeTranslateError: UnicodeTranslateError("ä", 0, 1, "why"),
    FileNotFoundError: FileNotFoundError(2, "No such file", "key.pem"),
    OSError: OSError("the disk is full"),
    KeyError: KeyError(("a", 1)),
    ExceptionGroup: ExceptionGroup("two", [ValueError("v"), ExceptionGroup("inner", [KeyError("k")])]),
}
BUILTINS = [SPECIAL.get(kind) or kind("words") for kind in BUILTIN_EXCEPTIONS.values()]


@pytest.mark.parametrize("error", BUILTINS, ids=lambda error: type(error).__name__)
def test_every_built_in_class_keeps_itself_and_its_arguments(error: Exception) -> None:
    there = from_failure(over_the_wire(to_failure(error)))
    assert type(there) is type(error)
    assert str(there) == str(error)
    if isinstance(error, ExceptionGroup):
        assert isinstance(there, ExceptionGroup)
        assert repr(there.exceptions) == repr(error.exceptions)
    else:
        assert there.args == error.args


def test_a_class_with_a_built_in_name_is_not_taken_for_it_and_a_note_says_that_it_is_unknown() -> None:
    other = type("ValueError", (Exception,), {"__module__": "bots"})
    error = from_failure(over_the_wire(to_failure(other("mine"))))
    assert type(error) is RemoteTargetError
    assert "bots.ValueError" in error.__notes__[0]


def test_a_failure_that_lies_about_its_arguments_is_an_error_of_an_unknown_class() -> None:
    for arguments in ("5", "[1, 2, 3", '[{"$type": "tag", "value": ["user"]}]'):
        failure = RemoteFailure(type="UnicodeDecodeError", message="m", arguments=arguments)
        assert type(from_failure(over_the_wire(failure))) is RemoteTargetError


def test_a_class_of_somebodys_own_is_named_and_is_a_runtime_error() -> None:
    class Melted(Exception):
        pass

    error = from_failure(over_the_wire(to_failure(Melted("too hot"))))
    assert type(error) is RemoteTargetError
    assert isinstance(error, RuntimeError)
    assert str(error) == "Melted: too hot"


def test_the_traceback_comes_along_as_a_note_and_is_cut() -> None:
    def deep(count: int) -> None:
        if not count:
            raise ValueError("at the bottom " + "x" * MAX_TRACEBACK_LENGTH)
        deep(count - 1)

    with pytest.raises(ValueError, match="at the bottom") as caught:
        deep(20)
    failure = over_the_wire(to_failure(caught.value))
    assert len(failure.traceback) <= MAX_TRACEBACK_LENGTH
    assert from_failure(failure).__notes__[0].startswith("Raised in the hosted target:\n")


def test_words_that_no_message_can_carry_are_carried_without_them() -> None:
    assert str(from_failure(over_the_wire(to_failure(ValueError("half \ud800"))))) == "half \ufffd"


def test_an_exception_whose_words_cannot_be_had_crosses_all_the_same() -> None:
    class Speechless(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert "Speechless" in str(from_failure(over_the_wire(to_failure(Speechless()))))


def test_what_began_here_comes_back_as_the_same_object() -> None:
    class Broken(Exception):
        pass

    mine, errands = Broken("here"), RemoteExceptions()
    there = from_failure(over_the_wire(errands.to_failure(mine)))
    assert type(there) is RemoteTargetError
    # The other side lets it through, and it is its run's end.
    assert errands.from_failure(over_the_wire(to_failure(there))) is mine
    # Somebody else's tokens mean nothing here.
    assert RemoteExceptions().from_failure(over_the_wire(to_failure(there))) is not mine
