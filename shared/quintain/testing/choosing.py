"""Which server a test is given: the one that is named, else the first of the ways that leads to one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from quintain.errors import ConfigError, QuintainError

#: Says ``container`` or ``server``, for every kind of server alike.
CHOICE_VARIABLE = "QUINTAIN_TEST_BROKER"

Say = Callable[[str], None]


class UnderTest(Protocol):
    """A server that a test is given."""

    @property
    def how(self) -> str:
        """In one line: which one it is."""


Server = TypeVar("Server", bound=UnderTest)

Way = Callable[[Mapping[str, str], Say], AbstractContextManager[Server]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Generic[Server]):
    """The ways to a server of one kind, in the order they are tried. ``kind`` is its word in the output, ``product``
    its name; ``missing`` is raised where no way led to one, and ``mend`` says what to do then."""

    kind: str
    product: str
    url_variable: str
    named: Callable[[str], Server]
    ways: Mapping[str, Way[Server]]
    missing: type[QuintainError]
    mend: str

    @contextlib.contextmanager
    def find(self, environment: Mapping[str, str], say: Say) -> Iterator[Server]:
        """A server, until left. It blocks: seconds, or minutes where something is pulled or installed.

        ``say`` is told, in one line each, what takes long, and at last which server was taken. Raises ``missing``, with
        all that was tried, where there is none, and `ConfigError` for a variable that cannot be understood.
        """
        with contextlib.ExitStack() as stack:
            server = self._take(stack, environment, say)
            say(f"{self.kind}: {server.how}")
            yield server

    def _take(self, stack: contextlib.ExitStack, environment: Mapping[str, str], say: Say) -> Server:
        if environment.get(self.url_variable):
            return self.named(environment[self.url_variable])
        tried = []
        for name, way in self._allowed(environment).items():
            try:
                return stack.enter_context(way(environment, say))
            except QuintainError as reason:
                tried.append(f"\n  {name}: {reason}")
        raise self.missing(f"There is no {self.product} to test against. Tried:{''.join(tried)}\n{self.mend}")

    def _allowed(self, environment: Mapping[str, str]) -> Mapping[str, Way[Server]]:
        choice = environment.get(CHOICE_VARIABLE)
        if not choice:
            return self.ways
        if choice not in self.ways:
            raise ConfigError(f"{CHOICE_VARIABLE} is '{choice}'; it may be {' or '.join(sorted(self.ways))}")
        return {choice: self.ways[choice]}
