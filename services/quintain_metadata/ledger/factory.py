"""Opens the ledger that a URL names.

The PostgreSQL module is imported only when needed, because asyncpg is an extra.
"""

from __future__ import annotations

import asyncio
import importlib

from quintain.errors import ConfigError, LedgerInUse
from quintain_metadata.ledger.base import Ledger
from quintain_metadata.ledger.sqlite import LoopWriter, SqliteLedger, ThreadWriter
from quintain_metadata.ledger.url import POSTGRES_SCHEMES, sqlite_path

#: How long to wait for a ledger that is in use, in seconds: the subprocess of a killed run (see
#: `quintain_metadata.__main__`) releases it soon.
LOCK_WAIT_SECONDS = 3.0


async def open_ledger(url: str, *, dedicated_process: bool = False) -> Ledger:
    """Open the ledger at ``sqlite:///path``, ``sqlite://`` (in memory) or ``postgresql://…``; the caller closes it.

    ``dedicated_process``: this process does nothing else, so SQLite may block its event loop.

    Raises `ConfigError` where the operator must correct something, `BudgetUnavailable` where PostgreSQL does not answer
    now but may later.
    """
    if url.partition(":")[0] in POSTGRES_SCHEMES:
        return await _open_postgres(url)
    return await _open_sqlite(sqlite_path(url), LoopWriter if dedicated_process else ThreadWriter)


async def _open_sqlite(path: str, writer: type[LoopWriter | ThreadWriter]) -> Ledger:
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + LOCK_WAIT_SECONDS
    while True:
        try:
            return SqliteLedger(path, loop, writer)
        except LedgerInUse:
            if loop.time() >= ends_at:
                raise
        await asyncio.sleep(0.05)


async def _open_postgres(url: str) -> Ledger:
    try:
        module = importlib.import_module("quintain_metadata.ledger.postgres")
    except ModuleNotFoundError as missing:
        if missing.name != "asyncpg":
            raise
        raise ConfigError(
            "QUINTAIN_LEDGER_URL names a PostgreSQL, and asyncpg is not installed: pip install 'quintain[postgres]'"
        ) from None
    ledger: Ledger = await module.PostgresLedger.open(url)
    return ledger
