"""Opens the content store that the settings name."""

from __future__ import annotations

from pathlib import Path

from quintain.errors import ConfigError
from quintain.settings import ContentSettings
from quintain_metadata.contents.base import ContentStore
from quintain_metadata.contents.folder import FolderContentStore
from quintain_metadata.contents.rows import LedgerContentStore
from quintain_metadata.ledger.base import Ledger

#: The store that is the ledger's own database.
POSTGRESQL = "postgresql"


def open_content_store(settings: ContentSettings | None, ledger: Ledger) -> ContentStore | None:
    """Return the content store that the settings name, or None where they name none. Raises `ConfigError`."""
    if settings is None:
        return None
    if settings.store != POSTGRESQL:
        return FolderContentStore(Path(settings.store), settings.max_bytes)
    if ledger.kind != POSTGRESQL:
        raise ConfigError(
            f"QUINTAIN_CONTENT_STORE is {POSTGRESQL}, and the ledger is not on PostgreSQL: name a folder, or another "
            "QUINTAIN_LEDGER_URL"
        )
    return LedgerContentStore(ledger, settings.max_bytes)
