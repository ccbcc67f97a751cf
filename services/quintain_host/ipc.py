"""Messages from a slot's process to its parent: one byte each, on a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

from quintain_host.counters import LEASE_ENDED, LEASE_GIVEN, RUN_OUTCOMES

#: It takes leases.
READY: Final = "ready"

_BYTE_BY_MESSAGE: Final = {
    READY: b"r",
    LEASE_GIVEN: b"l",
    LEASE_ENDED: b"o",
    **dict(zip(RUN_OUTCOMES, (b"e", b"f", b"c"), strict=True)),
}
_MESSAGE_BY_BYTE: Final = {byte[0]: word for word, byte in _BYTE_BY_MESSAGE.items()}

#: So much is read at a time, in bytes.
_READ_BYTES = 4096


def make_pipe() -> tuple[int, int]:
    """A pipe: the end to hear at, and the end to speak at. Neither ever holds anybody up."""
    return os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)


class IpcWriter:
    """The process's own end of a `make_pipe`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, message: str) -> None:
        """Say `READY`, or what a `Tally` counts."""
        # A parent that is gone is noticed elsewhere; with one that has not listened to 65,536 words a count is lost.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._descriptor, _BYTE_BY_MESSAGE[message])


@contextlib.contextmanager
def read_ipc(descriptor: int, on_message: Callable[[str], None]) -> Iterator[None]:
    """Be told each word that comes at a `make_pipe`'s end, those too that are still in it at the last; it is closed
    then.

    Who writes there runs a stranger's code: what is no word is passed over.
    """
    loop = asyncio.get_running_loop()

    def read() -> bool:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        for byte in data:
            if byte in _MESSAGE_BY_BYTE:
                on_message(_MESSAGE_BY_BYTE[byte])
        if not data:
            # Nobody holds the other end any more, and the loop would be told so for ever.
            loop.remove_reader(descriptor)
        return len(data) == _READ_BYTES

    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        while read():
            pass
        loop.remove_reader(descriptor)
        os.close(descriptor)
