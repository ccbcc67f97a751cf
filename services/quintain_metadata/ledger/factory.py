"""Opens the ledger that a URL names.

The PostgreSQL module is imported only when needed, because asyncpg is an extra.
"""

from __future__ import annotations

import asyncio
import importlib

from quintain.errors import ConfigError
from quintain_metadata.ledger.base import Ledger
from quintain_metadata.ledger.sqlite import SqliteLedger
from quintain_metadata.ledger.url import POSTGRES_SCHEMES, sqlite_path


async def open_ledger(url: str) -> Ledger:
    """Open the ledger at ``sqlite:///path``, ``sqlite://`` (in memory) or ``postgresql://…``; the caller closes it.

    Raises `ConfigError` where the operator must correct something, `BudgetUnavailable` where PostgreSQL does not answer
    now but may later.
    """
    if url.partition(":")[0] in POSTGRES_SCHEMES:
        return await _open_postgres(url)
    return SqliteLedger(sqlite_path(url), asyncio.get_running_loop())


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
