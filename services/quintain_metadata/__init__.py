"""The metadata service: sessions and their tokens, the call ledger, routing of unrouted requests, and dead letters."""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_metadata.ledger.base import Ledger
    from quintain_metadata.ledger.factory import open_ledger
    from quintain_metadata.ledger.migrations import SCHEMA_VERSION
    from quintain_metadata.ledger.snapshot import DatabaseServer, open_snapshot
    from quintain_metadata.ledger.url import IN_MEMORY_URL, redacted_url
    from quintain_metadata.metrics import MetadataMetrics
    from quintain_metadata.rules.audit import AuditReport, CallRecord, export_page, verify_counters
    from quintain_metadata.rules.targets import target_names
    from quintain_metadata.service.retention import PruneReport, find_old, prune
    from quintain_metadata.service.service import running_metadata
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_metadata.ledger.base": ("Ledger",),
            "quintain_metadata.ledger.factory": ("open_ledger",),
            "quintain_metadata.ledger.migrations": ("SCHEMA_VERSION",),
            "quintain_metadata.ledger.snapshot": ("DatabaseServer", "open_snapshot"),
            "quintain_metadata.ledger.url": ("IN_MEMORY_URL", "redacted_url"),
            "quintain_metadata.metrics": ("MetadataMetrics",),
            "quintain_metadata.rules.audit": ("AuditReport", "CallRecord", "export_page", "verify_counters"),
            "quintain_metadata.rules.targets": ("target_names",),
            "quintain_metadata.service.retention": ("PruneReport", "find_old", "prune"),
            "quintain_metadata.service.service": ("running_metadata",),
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
