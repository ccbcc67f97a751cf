"""Messages from a slot's child process to its parent: one byte each, over a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

from quintain_host.counters import LEASE_ENDED, LEASE_GIVEN, RUN_OUTCOMES

#: Message: the child consumes lease requests.
READY: Final = "ready"

_BYTE_BY_MESSAGE: Final = {
    READY: b"r",
    LEASE_GIVEN: b"l",
    LEASE_ENDED: b"o",
    **dict(zip(RUN_OUTCOMES, (b"e", b"f", b"c"), strict=True)),
}
_MESSAGE_BY_BYTE: Final = {byte[0]: message for message, byte in _BYTE_BY_MESSAGE.items()}

#: How much one read takes from the pipe, in bytes.
_READ_BYTES = 4096


def make_pipe() -> tuple[int, int]:
    """Create a non-blocking pipe and return its read and its write descriptor; child processes do not inherit them by
    default.
    """
    return os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)


class IpcWriter:
    """Writes messages to the write end of a `make_pipe`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, message: str) -> None:
        """Write `READY` or an event that `HostCounters.count` takes; a message that cannot be written is dropped."""
        # The end of the parent is noticed elsewhere (`wait_parent_exit`). A full pipe (65,536 unread messages) loses a
        # count.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._descriptor, _BYTE_BY_MESSAGE[message])


@contextlib.contextmanager
def read_ipc(descriptor: int, on_message: Callable[[str], None]) -> Iterator[None]:
    """Call ``on_message`` for each message that arrives at the pipe's read end while the context is open.

    Messages that are still in the pipe at the end are read too; then the descriptor is closed. Unknown bytes are
    ignored, because the writing process runs the target's code.
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
            # End of file: the writer closed its end. The descriptor would stay readable for ever.
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
