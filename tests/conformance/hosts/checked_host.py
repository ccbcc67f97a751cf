"""The process of the host that the suite drives: `quintain serve host`, or any other one (docs/protocol/hosts.md).

It reaches its broker through a proxy, which cuts its connection in the tests of reconnects.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from conformance.hosts.raw_driver import RawDriver
from quintain.target import SecurityDomainTag
from support.command_line import clean_environment, quintain_command
from support.quick import lease_variable
from support.tcp_proxy import TcpProxy, open_tcp_proxy
from support.thread_host import LoopThread

#: `quintain serve host` on threads, with half of the promised timings.
OWN_COMMAND = shlex.join(
    quintain_command(
        ("serve", "host", "scripted:Scripted", "--name", "{name}", "--slots", "2", "--isolation", "thread")
    )
)
OWN_ENVIRONMENT = lease_variable(7.5)

#: How long a host may take to start.
START_SECONDS = 60.0

#: How much of a host's output is shown when it fails.
LOG_CHARACTERS = 4_000


def _tags() -> list[SecurityDomainTag]:
    # No module has them by name: other tests look for tags of these paths in all modules.
    root = SecurityDomainTag("root")
    return [root, SecurityDomainTag("user", root), SecurityDomainTag("tools", root)]


#: The tags of the scripted target, as its driver has them.
TAGS = _tags()


class BrokerProxy:
    """A proxy before the broker, which cuts connections."""

    def __init__(self, broker_url: str) -> None:
        self._thread, self._stack = LoopThread("proxy"), contextlib.AsyncExitStack()
        address = urlsplit(broker_url)
        opened = open_tcp_proxy(address.hostname or "127.0.0.1", address.port or 5672)
        self._proxy: TcpProxy = self._thread.run(self._stack.enter_async_context(opened))
        user = address.netloc.rpartition("@")[0]
        self.url = address._replace(netloc=f"{user}@127.0.0.1:{self._proxy.port}").geturl()

    def cut(self) -> None:
        """Abort all connections, once: what is on its way is lost."""
        self._thread.loop.call_soon_threadsafe(self._proxy.drop_connections)

    def close(self) -> None:
        self._thread.run(self._stack.aclose())
        self._thread.close()


@contextlib.contextmanager
def broker_proxy(broker_url: str) -> Iterator[BrokerProxy]:
    """A proxy, until left."""
    proxy = BrokerProxy(broker_url)
    try:
        yield proxy
    finally:
        proxy.close()


class CheckedHost:
    """The process of a host with two slots, and its connection to the broker."""

    def __init__(self, command: str | None, proxy: BrokerProxy, folder: Path, invoked_in: Path) -> None:
        self.name, self.proxy = f"checked-{secrets.token_hex(4)}", proxy
        self._log = folder / "host.log"
        own = {} if command else OWN_ENVIRONMENT
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [word.replace("{name}", self.name) for word in shlex.split(command or OWN_COMMAND)],
                cwd=invoked_in if command else Path(__file__).parent,
                env={**clean_environment(), **own, "QUINTAIN_BROKER_URL": proxy.url},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-LOG_CHARACTERS:]

    def require_running(self) -> None:
        code = self.process.poll()
        assert code is None, f"the host ended with {code}:\n{self.log}"

    def stop(self) -> None:
        """Send SIGTERM, and wait for the end."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        finally:
            self.process.kill()


@contextlib.contextmanager
def checked_host(command: str | None, broker_url: str, folder: Path, invoked_in: Path) -> Iterator[CheckedHost]:
    """A running host, until left: that of a command line, which is to be run in a folder, or our own."""
    with broker_proxy(broker_url) as proxy:
        host = CheckedHost(command, proxy, folder, invoked_in)
        try:
            with RawDriver(broker_url, host.name) as driver:
                driver.open(seconds=START_SECONDS, check=host.require_running)
            yield host
        finally:
            host.stop()
