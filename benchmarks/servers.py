"""The servers of the test suite, for benchmarks: tests/ is on the import path of pytest alone."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

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
    "ServerUnavailable",
    "find_node",
    "free_port",
    "fresh_database",
    "npm_package",
    "run_sql",
    "running_server",
]
