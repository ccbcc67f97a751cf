"""The metadata service: sessions and their tokens, info, the ledger, default targets and unknown ones."""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_metadata.apart import Word
    from quintain_metadata.audit import Audit, export_calls, verify_counters
    from quintain_metadata.ledger import Ledger
    from quintain_metadata.ledger_factory import open_ledger
    from quintain_metadata.ledger_url import IN_MEMORY, shown
    from quintain_metadata.meter import MetadataMeter
    from quintain_metadata.running import running_metadata
    from quintain_metadata.schema import VERSION
    from quintain_metadata.snapshot import snapshot_of
    from quintain_metadata.upkeep import target_names
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_metadata.apart": ("Word",),
            "quintain_metadata.audit": ("Audit", "export_calls", "verify_counters"),
            "quintain_metadata.ledger": ("Ledger",),
            "quintain_metadata.ledger_url": ("IN_MEMORY", "shown"),
            "quintain_metadata.meter": ("MetadataMeter",),
            "quintain_metadata.ledger_factory": ("open_ledger",),
            "quintain_metadata.running": ("running_metadata",),
            "quintain_metadata.schema": ("VERSION",),
            "quintain_metadata.snapshot": ("snapshot_of",),
            "quintain_metadata.upkeep": ("target_names",),
        },
    )

__all__ = [
    "IN_MEMORY",
    "VERSION",
    "Audit",
    "Ledger",
    "MetadataMeter",
    "Word",
    "export_calls",
    "open_ledger",
    "running_metadata",
    "shown",
    "snapshot_of",
    "target_names",
    "verify_counters",
]
