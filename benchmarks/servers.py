"""The servers of the test suite, for benchmarks: tests/ is on the import path of pytest alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from quintain.settings import environment

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.client_tools import TOOLS, ClientTool, cache_folder, search_path
from support.servers.chooser import running_server
from support.servers.errors import ServerUnavailable
from support.servers.nodejs import find_node, npm_package
from support.servers.ports import free_port
from support.servers.postgres import POSTGRES
from support.servers.postgres_sql import fresh_database, run_sql
from support.servers.rabbitmq import RABBITMQ

__all__ = [
    "POSTGRES",
    "RABBITMQ",
    "TOOLS",
    "ClientTool",
    "ServerUnavailable",
    "cache_folder",
    "durable_postgres",
    "find_node",
    "free_port",
    "fresh_database",
    "npm_package",
    "run_sql",
    "running_server",
    "search_path",
]


@contextlib.contextmanager
def durable_postgres() -> Iterator[str]:
    """The address of a PostgreSQL that writes to the disk before it confirms, which that of the tests does not."""
    with running_server(POSTGRES, environment(), print) as server:
        if server.admin is not None:  # one that the environment names stays as it is
            run_sql(server.url, "ALTER SYSTEM SET fsync = on")
            run_sql(server.url, "SELECT pg_reload_conf()")
        yield server.url
