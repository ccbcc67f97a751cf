"""The one error of this package."""

from __future__ import annotations


class ServerUnavailable(Exception):
    """No server can be had, or one of its programs failed; the text says why and what to do."""
