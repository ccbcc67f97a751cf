"""The `ContentStore` interface: it keeps the pieces of contents, and the ledger knows what they are and whose."""

from __future__ import annotations

from typing import Protocol


class ContentStore(Protocol):
    """Keeps pieces by the id of their content, 32 hexadecimal digits that the ledger made, and their number.

    Every method may be repeated. Each raises `Overloaded` where the store cannot be used now.
    """

    @property
    def max_bytes(self) -> int:
        """The size of all contents together, in bytes, that the fleet may store."""

    async def write(self, content_id: str, number: int, data: bytes) -> None:
        """Store one piece, whole or not at all; a piece that exists is replaced."""

    async def read(self, content_id: str, number: int) -> bytes | None:
        """Return one piece, or None where there is none."""

    async def piece_numbers(self, content_id: str) -> set[int]:
        """Return the numbers of the pieces that are stored."""

    async def delete(self, content_id: str) -> None:
        """Delete all pieces of a content."""

    async def delete_abandoned(self) -> None:
        """Delete the pieces of contents that no ledger can know any more."""
