"""Chooses and starts the server that tests and benchmarks use, alike for every kind. In this order:

1. the server that the kind's variable names (``QUINTAIN_TEST_BROKER_URL``, ``QUINTAIN_TEST_POSTGRES_URL``): that one,
   or an error, and never another;
2. a container, where a Docker engine answers and has or can pull the image;
3. a private server, started from the programs of this machine;
4. the same, after installing the programs, where there are apt-get and root.

``QUINTAIN_TEST_BROKER=container`` allows only the second, ``=server`` only the third and fourth.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

from support.servers.container import container_server
from support.servers.errors import ServerUnavailable
from support.servers.kind import AdminT, Server, ServerKind
from support.servers.packages import Report

CHOICE_VARIABLE = "QUINTAIN_TEST_BROKER"

Start = Callable[[ServerKind[AdminT], Mapping[str, str], Report], AbstractContextManager[Server[AdminT]]]


@contextlib.contextmanager
def running_server(
    kind: ServerKind[AdminT], environment: Mapping[str, str], report: Report
) -> Iterator[Server[AdminT]]:
    """Give a server of this kind until the block ends. It blocks: seconds, or minutes for a pull or an installation.

    ``report`` is called with one line for each step that takes long, and at last with one that says which server was
    taken. Raises `ServerUnavailable` where there is none, with everything that was tried, and where a variable cannot
    be understood.
    """
    with contextlib.ExitStack() as stack:
        url = environment.get(kind.url_variable)
        server = named_server(kind, url) if url else _start_first(kind, environment, report, stack)
        report(f"{kind.label}: {server.how}")
        yield server


def named_server(kind: ServerKind[AdminT], url: str) -> Server[AdminT]:
    """Return the server at this URL. Raises `ServerUnavailable` where the URL is wrong or no server answers there."""
    try:
        address = kind.address(url)
    except ValueError as error:
        raise ServerUnavailable(f"{kind.url_variable} cannot be used: {error}") from error
    try:
        version = kind.read_version(url)
    except (OSError, ServerUnavailable) as error:
        raise ServerUnavailable(
            f"{kind.url_variable} names a {kind.product} at {address}, which cannot be used ({error}): "
            "start it, or unset the variable to have one started"
        ) from error
    return Server(url=url, how=f"{kind.product} {version} at {address}, named by {kind.url_variable}", admin=None)


def private_server(
    kind: ServerKind[AdminT], environment: Mapping[str, str], report: Report
) -> AbstractContextManager[Server[AdminT]]:
    """A server of this machine's programs, installed first where they are missing."""
    return kind.private_server(kind.packages.find_or_install(environment, report), environment)


def _start_first(
    kind: ServerKind[AdminT], environment: Mapping[str, str], report: Report, stack: contextlib.ExitStack
) -> Server[AdminT]:
    ways: dict[str, Start[AdminT]] = {"container": container_server, "server": private_server}
    choice = environment.get(CHOICE_VARIABLE)
    if choice and choice not in ways:
        raise ServerUnavailable(f"{CHOICE_VARIABLE} is '{choice}'; it may be {' or '.join(sorted(ways))}")
    tried = ""
    for name in [choice] if choice else ways:
        try:
            return stack.enter_context(ways[name](kind, environment, report))
        except ServerUnavailable as reason:
            tried += f"\n  {name}: {reason}"
    raise ServerUnavailable(
        f"There is no {kind.product} to test against. Tried:{tried}\n"
        f"Start one and name it in {kind.url_variable}, or start Docker, "
        f"or run apt-get install -y {' '.join(kind.packages.names)}"
    )
