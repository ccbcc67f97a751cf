"""A real PostgreSQL for tests and benchmarks, taken from where there is one.

In this order:

1. ``QUINTAIN_TEST_POSTGRES_URL`` names one that runs: that one, or an error, and never another.
2. A container, where a Docker engine answers and has or can pull the image.
3. The PostgreSQL of this machine, with a private cluster.
4. The same, installed first, where there are apt and root.

``QUINTAIN_TEST_BROKER=container`` allows only the second, ``=server`` only the third and fourth, as for RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from urllib.parse import urlsplit

from quintain.errors import ConfigError, QuintainError
from quintain.testing.choosing import Choice, Say
from quintain.testing.postgres_cluster import private_cluster
from quintain.testing.postgres_container import container
from quintain.testing.postgres_server import find_programs, install_programs
from quintain.testing.postgres_under_test import PostgresAdmin, PostgresUnderTest, read_version

__all__ = ["PostgresAdmin", "PostgresUnderTest", "find_postgres"]

_URL_VARIABLE = "QUINTAIN_TEST_POSTGRES_URL"


def find_postgres(environment: Mapping[str, str], say: Say) -> AbstractContextManager[PostgresUnderTest]:
    """A real PostgreSQL, as `Choice.find` gives it; raises `QuintainError` where there is none."""
    return _CHOICE.find(environment, say)


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


_CHOICE = Choice(
    kind="postgres",
    product="PostgreSQL",
    url_variable=_URL_VARIABLE,
    named=_named_server,
    ways={"container": container, "server": _server},
    missing=QuintainError,
    mend=f"Start a PostgreSQL and name it ({_URL_VARIABLE}=postgresql://user:password@127.0.0.1:5432/database, for a "
    "user that may create databases), or start Docker, or install one (apt-get install -y postgresql)",
)
