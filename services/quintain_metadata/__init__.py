"""The metadata service: sessions and their tokens, the call ledger, routing of unrouted requests, and dead letters."""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_metadata.audit import AuditReport, CallRecord, export_page, verify_counters
    from quintain_metadata.metrics import MetadataMetrics
    from quintain_metadata.opening import DatabaseServer, open_ledger, open_snapshot
    from quintain_metadata.retention import PruneReport, find_old, prune
    from quintain_metadata.schema import SCHEMA_VERSION
    from quintain_metadata.service import running_metadata
    from quintain_metadata.store import IN_MEMORY_URL, Ledger, redacted_url
    from quintain_metadata.targets import target_names
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_metadata.schema": ("SCHEMA_VERSION",),
            "quintain_metadata.opening": ("DatabaseServer", "open_ledger", "open_snapshot"),
            "quintain_metadata.store": ("IN_MEMORY_URL", "Ledger", "redacted_url"),
            "quintain_metadata.metrics": ("MetadataMetrics",),
            "quintain_metadata.audit": ("AuditReport", "CallRecord", "export_page", "verify_counters"),
            "quintain_metadata.targets": ("target_names",),
            "quintain_metadata.retention": ("PruneReport", "find_old", "prune"),
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
