"""Contents as rows of the ledger's database, for a fleet whose ledger is on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from quintain_metadata.ledger.base import Ledger, SqlProgram, execute, fetch_one

Returned = TypeVar("Returned")


class LedgerContentStore:
    """Pieces as rows of ``content_piece``; a row ends with that of its content."""

    def __init__(self, ledger: Ledger, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._ledger = ledger

    async def write(self, content_id: str, number: int, data: bytes) -> None:
        """Store one piece (`ContentStore.write`); one of a content that the ledger has deleted is not stored."""
        await self._run(
            lambda: execute(
                "INSERT INTO content_piece (content_id, number, data) SELECT id, ?, ? FROM content WHERE id = ?"
                " ON CONFLICT (content_id, number) DO UPDATE SET data = excluded.data",
                *(number, data, content_id),
            )
        )

    async def read(self, content_id: str, number: int) -> bytes | None:
        """Return one piece (`ContentStore.read`)."""
        row = await self._run(
            lambda: fetch_one("SELECT data FROM content_piece WHERE content_id = ? AND number = ?", content_id, number)
        )
        return None if row is None else bytes(row[0])

    async def piece_numbers(self, content_id: str) -> set[int]:
        """Return the numbers of the stored pieces (`ContentStore.piece_numbers`)."""
        rows = await self._run(lambda: execute("SELECT number FROM content_piece WHERE content_id = ?", content_id))
        return {row[0] for row in rows}

    async def delete(self, content_id: str) -> None:
        """Delete all pieces of a content (`ContentStore.delete`)."""
        await self._run(lambda: execute("DELETE FROM content_piece WHERE content_id = ?", content_id))

    async def delete_abandoned(self) -> None:
        """Do nothing: a piece is deleted with the row of its content."""

    async def _run(self, program: Callable[[], SqlProgram[Returned]]) -> Returned:
        return await self._ledger.transact(lambda _: program())
