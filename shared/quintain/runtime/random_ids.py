"""Random ids, generated in blocks: a system call per id would release the GIL each time."""

from __future__ import annotations

import os

#: Size of one id, and of the block of random bytes read at a time, in bytes.
NAME_BYTES = 16
BLOCK_BYTES = 256 * NAME_BYTES


class RandomIds:
    """Generates unguessable ids. Do not share it between a process and its fork: both would generate the same ids."""

    def __init__(self) -> None:
        self._unused: list[bytes] = []

    def next(self) -> str:
        """Return an id of 32 hexadecimal digits."""
        if not self._unused:
            block = os.urandom(BLOCK_BYTES)
            self._unused = [block[offset : offset + NAME_BYTES] for offset in range(0, BLOCK_BYTES, NAME_BYTES)]
        return self._unused.pop().hex()
