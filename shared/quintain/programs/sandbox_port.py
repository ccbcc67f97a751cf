"""The way out of a sandbox: one port on its own loopback, whose connections are forwarded from outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from quintain.programs.program import CannotStart, start_error
from quintain.runtime.concurrency import cancel_and_wait, start_task

_READ_BYTES = 65_536


class SandboxPort:
    """The connection to the first process of a sandbox (`quintain.programs.sandbox_start`), which opens a port there.

    ``address`` is the host and port that connections are forwarded to; without any, the sandbox has no network. Use it
    in a ``with`` block. ``program_fd`` is for the program, and is closed here once that has started.
    """

    def __init__(self, address: tuple[str, int] | None) -> None:
        self._address = address
        self._own_end, self._program_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    @property
    def program_fd(self) -> int:
        """The file descriptor that the sandbox's first process gets."""
        return self._program_end.fileno()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Wait for the program's start, and forward its connections until the end of the block.

        Raises `CannotStart`.
        """
        self._program_end.close()
        self._own_end.settimeout(0)
        data, fds = await self._receive()
        forwarding: set[asyncio.Task[None]] = set()

        def forward(reader: StreamReader, writer: StreamWriter) -> None:
            start_task(forwarding, self._forward(reader, writer), name="sandbox port")

        async with contextlib.AsyncExitStack() as stack:
            for fd in fds:
                await stack.enter_async_context(await asyncio.start_server(forward, sock=socket.socket(fileno=fd)))
            stack.push_async_callback(lambda: cancel_and_wait(*forwarding))
            self._check(data, (await self._receive())[0])
            yield

    def wait_until_started(self) -> None:
        """Wait for the start of a program without network. Blocks. Raises `CannotStart`."""
        self._program_end.close()
        self._check(self._own_end.recv(_READ_BYTES), self._own_end.recv(_READ_BYTES))

    @staticmethod
    def _check(first: bytes, second: bytes) -> None:
        if not first:
            raise CannotStart("bubblewrap could not make its sandbox")
        if second:
            raise start_error(int(second), os.strerror(int(second)))

    async def _receive(self) -> tuple[bytes, list[int]]:
        """The next message and its file descriptors; empty once the program has replaced the first process."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._own_end, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._own_end)
        data, fds, _, _ = socket.recv_fds(self._own_end, _READ_BYTES, 1)
        return data, fds

    async def _forward(self, inside: StreamReader, inside_writer: StreamWriter) -> None:
        """Copy between a connection of the program and a new one to the address, until both ends are closed."""
        host, port = self._address or ("", 0)
        with contextlib.suppress(OSError), contextlib.closing(inside_writer):
            outside, outside_writer = await asyncio.open_connection(host, port)
            with contextlib.closing(outside_writer):
                async with asyncio.TaskGroup() as copies:
                    copies.create_task(_copy(inside, outside_writer))
                    copies.create_task(_copy(outside, inside_writer))

    def __enter__(self) -> Self:
        """Return the port, with its sockets open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the sockets."""
        self._own_end.close()
        self._program_end.close()


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
