"""The metadata service: sessions and their tokens, the call ledger, routing of unrouted requests, and dead letters."""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_metadata.contents.factory import open_content_store
    from quintain_metadata.ledger.base import Ledger
    from quintain_metadata.ledger.factory import open_ledger
    from quintain_metadata.ledger.migrations import SCHEMA_VERSION
    from quintain_metadata.ledger.snapshot import DatabaseServer, open_snapshot
    from quintain_metadata.ledger.url import IN_MEMORY_URL, redacted_url
    from quintain_metadata.metrics import MetadataMetrics
    from quintain_metadata.rules.audit import AuditReport, CallRecord, export_page, verify_counters
    from quintain_metadata.rules.session_repository import sessions_sending_tokens
    from quintain_metadata.rules.targets import target_names
    from quintain_metadata.service.service import running_metadata
    from quintain_metadata.service.subprocess_status import StartupStatus
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_metadata.contents.factory": ("open_content_store",),
            "quintain_metadata.ledger.base": ("Ledger",),
            "quintain_metadata.ledger.factory": ("open_ledger",),
            "quintain_metadata.ledger.migrations": ("SCHEMA_VERSION",),
            "quintain_metadata.ledger.snapshot": ("DatabaseServer", "open_snapshot"),
            "quintain_metadata.ledger.url": ("IN_MEMORY_URL", "redacted_url"),
            "quintain_metadata.metrics": ("MetadataMetrics",),
            "quintain_metadata.rules.audit": ("AuditReport", "CallRecord", "export_page", "verify_counters"),
            "quintain_metadata.rules.session_repository": ("sessions_sending_tokens",),
            "quintain_metadata.rules.targets": ("target_names",),
            "quintain_metadata.service.service": ("running_metadata",),
            "quintain_metadata.service.subprocess_status": ("StartupStatus",),
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
    "StartupStatus",
    "export_page",
    "open_content_store",
    "open_ledger",
    "open_snapshot",
    "redacted_url",
    "running_metadata",
    "sessions_sending_tokens",
    "target_names",
    "verify_counters",
]
