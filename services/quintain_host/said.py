"""What a slot's process says to the one that started it: words of one byte each, on a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

from quintain_host.tally import ENDS, LEASE, OVER

#: It takes leases.
READY: Final = "ready"

_BYTES: Final = {READY: b"r", LEASE: b"l", OVER: b"o", **dict(zip(ENDS, (b"e", b"f", b"c"), strict=True))}
_WORDS: Final = {byte[0]: word for word, byte in _BYTES.items()}

#: So much is read at a time, in bytes.
_READ_BYTES = 4096


def way() -> tuple[int, int]:
    """A pipe: the end to hear at, and the end to speak at. Neither ever holds anybody up."""
    return os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)


class Saying:
    """The process's own end of a `way`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def say(self, word: str) -> None:
        """Say `READY`, or what a `Tally` counts."""
        # A parent that is gone is noticed elsewhere; with one that has not listened to 65,536 words a count is lost.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._descriptor, _BYTES[word])


@contextlib.contextmanager
def hearing(descriptor: int, hear: Callable[[str], None]) -> Iterator[None]:
    """Be told each word that comes at a `way`'s end, those too that are still in it at the last; it is closed then.

    Who writes there runs a stranger's code: what is no word is passed over.
    """
    loop = asyncio.get_running_loop()

    def read() -> bool:
        try:
            said = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        for byte in said:
            if byte in _WORDS:
                hear(_WORDS[byte])
        if not said:
            # Nobody holds the other end any more, and the loop would be told so for ever.
            loop.remove_reader(descriptor)
        return len(said) == _READ_BYTES

    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        while read():
            pass
        loop.remove_reader(descriptor)
        os.close(descriptor)
