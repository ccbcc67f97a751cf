"""The ledger that a URL names. PostgreSQL's is imported only where it is named: asyncpg is an extra."""

from __future__ import annotations

import asyncio
import importlib

from quintain.errors import ConfigError, LedgerInUse
from quintain_metadata.ledger import Ledger
from quintain_metadata.ledger_url import POSTGRES_SCHEMES, sqlite_path
from quintain_metadata.sqlite import SqliteLedger
from quintain_metadata.sqlite_writer import LoopWriter, ThreadWriter

#: How long a ledger may be in use before that is an error, in seconds: what is left of a run that was killed (see
#: `quintain_metadata.__main__`) lets go by itself.
LETTING_GO_SECONDS = 3.0


async def open_ledger(url: str, *, alone: bool = False) -> Ledger:
    """Open the ledger at ``sqlite:///path``, ``sqlite://`` (in memory) or ``postgresql://…``; the caller closes it.
    ``alone``: this process does nothing else, so that SQLite may hold it up.

    Raises `ConfigError` where the operator must mend something, `BudgetUnavailable` where a PostgreSQL does not
    answer and may yet.
    """
    if url.partition(":")[0] in POSTGRES_SCHEMES:
        return await _open_postgres(url)
    return await _open_sqlite(sqlite_path(url), LoopWriter if alone else ThreadWriter)


async def _open_sqlite(path: str, writer: type[LoopWriter | ThreadWriter]) -> Ledger:
    loop = asyncio.get_running_loop()
    ends = loop.time() + LETTING_GO_SECONDS
    while True:
        try:
            return SqliteLedger(path, loop, writer)
        except LedgerInUse:
            if loop.time() >= ends:
                raise
        await asyncio.sleep(0.05)


async def _open_postgres(url: str) -> Ledger:
    try:
        module = importlib.import_module("quintain_metadata.postgres")
    except ModuleNotFoundError as missing:
        if missing.name != "asyncpg":
            raise
        raise ConfigError(
            "QUINTAIN_LEDGER_URL names a PostgreSQL, and asyncpg is not installed: pip install 'quintain[postgres]'"
        ) from None
    ledger: Ledger = await module.PostgresLedger.open(url)
    return ledger
