"""A real PostgreSQL for tests and benchmarks, taken from where there is one.

In this order:

1. ``QUINTAIN_TEST_POSTGRES_URL`` names one that runs: that one, or an error, and never another.
2. A container, where a Docker engine answers and has or can pull the image.
3. The PostgreSQL of this machine, with a private cluster.
4. The same, installed first, where there are apt and root.

``QUINTAIN_TEST_BROKER=container`` allows only the second, ``=server`` only the third and fourth, as for RabbitMQ.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from urllib.parse import urlsplit

from quintain.errors import ConfigError, QuintainError
from quintain.testing.postgres_cluster import private_cluster
from quintain.testing.postgres_container import container
from quintain.testing.postgres_server import find_programs, install_programs
from quintain.testing.postgres_under_test import PostgresAdmin, PostgresUnderTest, read_version

__all__ = ["PostgresAdmin", "PostgresUnderTest", "find_postgres"]

Say = Callable[[str], None]
_Way = Callable[[Mapping[str, str], Say], AbstractContextManager[PostgresUnderTest]]

_URL_VARIABLE = "QUINTAIN_TEST_POSTGRES_URL"
_CHOICE_VARIABLE = "QUINTAIN_TEST_BROKER"

_MEND = (
    f"Start a PostgreSQL and name it ({_URL_VARIABLE}=postgresql://user:password@127.0.0.1:5432/database, for a user "
    "that may create databases), or start Docker, or install one (apt-get install -y postgresql)"
)


@contextlib.contextmanager
def find_postgres(environment: Mapping[str, str], say: Say) -> Iterator[PostgresUnderTest]:
    """A real PostgreSQL, until left. It blocks: seconds, or minutes where something is pulled or installed.

    ``say`` is told, in one line each, what takes long, and at last which server was taken. Raises `QuintainError`,
    with all that was tried, where there is none, and `ConfigError` for a variable that cannot be understood.
    """
    with contextlib.ExitStack() as stack:
        server = _take(stack, environment, say)
        say(f"postgres: {server.how}")
        yield server


def _take(stack: contextlib.ExitStack, environment: Mapping[str, str], say: Say) -> PostgresUnderTest:
    if environment.get(_URL_VARIABLE):
        return _named_server(environment[_URL_VARIABLE])
    tried = []
    for name, way in _ways(environment).items():
        try:
            return stack.enter_context(way(environment, say))
        except QuintainError as reason:
            tried.append(f"\n  {name}: {reason}")
    raise QuintainError(f"There is no PostgreSQL to test against. Tried:{''.join(tried)}\n{_MEND}")


def _ways(environment: Mapping[str, str]) -> Mapping[str, _Way]:
    ways: dict[str, _Way] = {"container": container, "server": _server}
    choice = environment.get(_CHOICE_VARIABLE)
    if not choice:
        return ways
    if choice not in ways:
        raise ConfigError(f"{_CHOICE_VARIABLE} is '{choice}'; it may be {' or '.join(sorted(ways))}")
    return {choice: ways[choice]}


def _named_server(url: str) -> PostgresUnderTest:
    try:
        parts = urlsplit(url)
        address = f"{parts.hostname or 'localhost'}:{parts.port or 5432}"
    except ValueError:
        # Its own message shows a piece of the URL, and that may be of the password.
        raise ConfigError(f"{_URL_VARIABLE} cannot be read: the port behind the host is not a number") from None
    if parts.scheme not in {"postgresql", "postgres"}:
        raise ConfigError(f"{_URL_VARIABLE} cannot be used: a PostgreSQL's URL starts with postgresql://")
    try:
        version = read_version(url)
    except (OSError, QuintainError) as error:
        raise QuintainError(
            f"{_URL_VARIABLE} names a PostgreSQL at {address}, and it is not to be used ({error}): "
            "start it, or unset the variable to have one started"
        ) from error
    return PostgresUnderTest(url=url, how=f"PostgreSQL {version} at {address}, named by {_URL_VARIABLE}", admin=None)


def _server(environment: Mapping[str, str], say: Say) -> AbstractContextManager[PostgresUnderTest]:
    return private_cluster(find_programs(environment) or install_programs(environment, say), environment)
