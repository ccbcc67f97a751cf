"""The ledger's migrations on PostgreSQL: applied by whoever comes first, awaited by all the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from quintain.errors import ConfigError
from quintain_metadata.schema import MIGRATIONS

#: Operations lock keys that begin with a word and a separator: this one is nobody else's.
LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('quintain ledger migrations', 0))"

#: What a migration needs on PostgreSQL alone, by its number. It never changes what a statement says.
TUNING: Final[dict[int, tuple[str, ...]]] = {
    # The counter of a busy session is rewritten with every call. Room on its page keeps its versions there (HOT).
    1: ("ALTER TABLE session SET (fillfactor = 50)",),
}


async def migrate(
    connection: PoolConnectionProxy[asyncpg.Record],
    place: str,
    migrations: Sequence[Sequence[str]] = MIGRATIONS,
) -> None:
    """Bring the schema to this release's version. Raises `ConfigError` where it is newer.

    One transaction under a lock: several services start at once, and one that dies half-way leaves nothing.
    """
    async with connection.transaction():
        await connection.execute(LOCK)
        found = await _version(connection)
        if found > len(migrations):
            raise ConfigError(
                f"The ledger {place} has schema {found}, and this release knows {len(migrations)}: upgrade quintain, "
                "or use another QUINTAIN_LEDGER_URL"
            )
        if found == len(migrations):
            return
        for number, statements in enumerate(migrations[found:], start=found + 1):
            for statement in (*statements, *TUNING.get(number, ())):
                await connection.execute(statement)
        await connection.execute("CREATE TABLE IF NOT EXISTS ledger_version (version bigint NOT NULL)")
        await connection.execute("DELETE FROM ledger_version")
        await connection.execute("INSERT INTO ledger_version (version) VALUES ($1)", len(migrations))


async def _version(connection: PoolConnectionProxy[asyncpg.Record]) -> int:
    # Asked first: a service that has nothing to migrate needs no right to create a table.
    if await connection.fetchval("SELECT to_regclass('ledger_version')") is None:
        return 0
    return int(await connection.fetchval("SELECT max(version) FROM ledger_version") or 0)
