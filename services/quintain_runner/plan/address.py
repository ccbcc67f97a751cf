"""The ids of the calls that a run makes. No I/O."""

from __future__ import annotations

import base64
import hashlib
import json


def request_id(*parts: object) -> str:
    """Return the id of a call that is made of these parts: the same after a crash, so that it is charged once.

    It is 43 of ``[A-Za-z0-9_-]``: batch APIs take no more than 64.
    """
    return base64.urlsafe_b64encode(digest(*parts)).decode().rstrip("=")


def digest(*parts: object) -> bytes:
    """Return the SHA-256 of parts that JSON can hold."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).digest()
