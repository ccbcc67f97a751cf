"""The ledger that a URL names. PostgreSQL's is imported only where it is named: asyncpg is an extra."""

from __future__ import annotations

import asyncio
import importlib

from quintain.errors import ConfigError
from quintain_metadata.ledger import Ledger
from quintain_metadata.ledger_url import POSTGRES_SCHEMES, sqlite_path
from quintain_metadata.sqlite import SqliteLedger


async def open_ledger(url: str) -> Ledger:
    """Open the ledger at ``sqlite:///path``, ``sqlite://`` (in memory) or ``postgresql://…``; the caller closes it.

    Raises `ConfigError` where the operator must mend something, `BudgetUnavailable` where a PostgreSQL does not
    answer and may yet.
    """
    if url.partition(":")[0] in POSTGRES_SCHEMES:
        return await _open_postgres(url)
    return SqliteLedger(sqlite_path(url), asyncio.get_running_loop())


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
