"""Refuses requests whose ``Host`` is not a name of this gateway, against DNS rebinding.

A page in a browser may give its own name the address of this machine, and then read what a gateway on loopback answers
to it. Its requests keep the page's name as ``Host``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from quintain.errors import Fault
from quintain_gateway.http.context import context_in_scope, header_in_scope
from quintain_gateway.http.errors import MisdirectedRequest

#: An IPv6 address in brackets, or a name, and perhaps a port.
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^:/@\[\]\s]+))(?::[0-9]*)?")


class HostCheck:
    """Passes requests on to an application if their ``Host`` is one of ``names``, with any port, or absent."""

    def __init__(
        self, app: ASGIApp, names: frozenset[str], error_response_of: Callable[[Scope], Callable[[Fault], Response]]
    ) -> None:
        self._app, self._names, self._error_response_of = app, names, error_response_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request: answer 421 if it is for another host."""
        host = header_in_scope(scope, b"host")
        if host is None or _name_of(host) in self._names:
            await self._app(scope, receive, send)
            return
        context_in_scope(scope).code = MisdirectedRequest.code
        await self._error_response_of(scope)(MisdirectedRequest())(scope, receive, send)


@functools.lru_cache(maxsize=64)
def _name_of(host: str) -> str | None:
    """Return the name in a ``Host`` header, in lower case and without the port; None if there is none."""
    match = _HOST.fullmatch(host.lower())
    return None if match is None else match["address"] or match["name"].removesuffix(".")
