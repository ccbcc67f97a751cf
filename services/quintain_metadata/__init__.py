"""The metadata service: sessions and their tokens, the call ledger, routing of unrouted requests, and dead letters."""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_metadata.ledger.audit import AuditReport, CallRecord, export_page, verify_counters
    from quintain_metadata.ledger.retention import PruneReport, find_old, prune
    from quintain_metadata.ledger.targets import target_names
    from quintain_metadata.metrics import MetadataMetrics
    from quintain_metadata.service import running_metadata
    from quintain_metadata.store.base import IN_MEMORY_URL, Ledger, redacted_url
    from quintain_metadata.store.opening import DatabaseServer, open_ledger, open_snapshot
    from quintain_metadata.store.schema import SCHEMA_VERSION
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_metadata.store.schema": ("SCHEMA_VERSION",),
            "quintain_metadata.store.opening": ("DatabaseServer", "open_ledger", "open_snapshot"),
            "quintain_metadata.store.base": ("IN_MEMORY_URL", "Ledger", "redacted_url"),
            "quintain_metadata.metrics": ("MetadataMetrics",),
            "quintain_metadata.ledger.audit": ("AuditReport", "CallRecord", "export_page", "verify_counters"),
            "quintain_metadata.ledger.targets": ("target_names",),
            "quintain_metadata.ledger.retention": ("PruneReport", "find_old", "prune"),
            "quintain_metadata.service": ("running_metadata",),
        },
    )

__all__ = [
    "IN_MEMORY_URL",
    "SCHEMA_VERSION",
    "AuditReport",
    "CallRecord",
    "DatabaseServer",
    "Ledger",
    "MetadataMetrics",
    "PruneReport",
    "export_page",
    "find_old",
    "open_ledger",
    "open_snapshot",
    "prune",
    "redacted_url",
    "running_metadata",
    "target_names",
    "verify_counters",
]
