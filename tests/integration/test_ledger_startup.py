"""``quintain serve metadata`` before a PostgreSQL that is not up, or that will never be of use. No broker is needed:
the ledger comes first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.command_line import CommandLine, RunningCommand, command_line
from support.servers.postgres_admin import PostgresUnderTest
from support.servers.postgres_sql import fresh_database


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[CommandLine]:
    """A shell whose broker is never there."""
    env = {"QUINTAIN_BROKER_URL": "amqp://127.0.0.1:9", "QUINTAIN_ADMIN_TOKEN": "an admin token of a test"}
    with command_line(tmp_path, env) as shell:
        yield shell


def lines(running: RunningCommand, about: str) -> list[str]:
    return [line for line in running.stderr.splitlines() if about in line]


def test_a_ledger_that_is_not_up_yet_is_waited_for_and_said_so_once(
    shell: CommandLine, breakable_postgres: PostgresUnderTest
) -> None:
    admin = breakable_postgres.admin
    assert admin is not None
    with fresh_database(breakable_postgres.url) as url:
        admin.crash()
        try:
            metadata = shell.start("serve", "metadata", env={"QUINTAIN_LEDGER_URL": url})
            metadata.wait_for(lambda one: bool(lines(one, "waiting  The ledger")))
        finally:
            admin.start()
        # It goes on to what it needs next.
        metadata.wait_for(lambda one: bool(lines(one, "waiting  No broker")))
        assert len(lines(metadata, "waiting  The ledger")) == len(lines(metadata, "new ledger")) == 1
        assert (urlsplit(url).password or "-") not in metadata.stderr
        assert metadata.stop().code == 0


def test_a_service_that_waits_for_its_ledger_stops_when_told(shell: CommandLine) -> None:
    metadata = shell.start("serve", "metadata", env={"QUINTAIN_LEDGER_URL": "postgresql://me:se-cret@127.0.0.1:9/db"})
    metadata.wait_for(lambda one: bool(lines(one, "waiting  The ledger postgresql://me@127.0.0.1:9/db")))
    ended = metadata.stop()
    assert ended.code == 0
    assert "se-cret" not in ended.stderr
