"""HTTP's methods, and a path of our own that answers some of them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quintain_gateway.refusals import MethodNotAllowed

Answer = Callable[[Request], Awaitable[Response]]

#: Every method there is a name for; a label's value is one of these.
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")


def resource(
    path: str, answers: Mapping[str, Answer], endpoint: Callable[[Answer], Answer], *, anywhere: bool = False
) -> Route:
    """A path and what answers each of its methods; any other one is 405. OPTIONS is answered for every path alike.

    ``endpoint`` is the API's own: what turns a fault into its words. ``anywhere``: behind any prefix, too; the route's
    own path, which is a label, has none.
    """
    known = {**answers, **({"HEAD": answers["GET"]} if "GET" in answers else {})}
    allowed = ", ".join(sorted(known))

    async def answer(request: Request) -> Response:
        if request.method not in known:
            raise MethodNotAllowed(f"{path} does not know {request.method}: there is {allowed}")
        return await known[request.method](request)

    async def respond(request: Request) -> Response:
        response = await guarded(request)
        if response.status_code == MethodNotAllowed.status:
            response.headers["Allow"] = allowed
        return response

    guarded = endpoint(answer)
    route = Route(path, respond, methods=[method for method in METHODS if method != "OPTIONS"])
    if anywhere:
        route.path_regex = re.compile("^(?:/.*)?" + route.path_regex.pattern.removeprefix("^"), re.DOTALL)
    return route
