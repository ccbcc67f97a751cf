"""Who asks: the session or the administrator that a token stands for."""

from __future__ import annotations

import asyncio
import contextlib
import math
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial

from starlette.requests import Request

from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.client.sessions import Sessions
from quintain.contracts import credentials
from quintain.contracts.credentials import SessionToken
from quintain.contracts.session import Info
from quintain.errors import BadRequest, BudgetExhausted, PayloadTooLarge, Unauthorized
from quintain.rpc.requests import RpcClient
from quintain.timings import Clock
from quintain_gateway.bodies import BodyReader
from quintain_gateway.calls import RetryWindow
from quintain_gateway.endpoint import RequestContext, context_of, is_anthropic
from quintain_gateway.errors import BUSY_RETRY_MS, SessionBusy
from quintain_gateway.metrics import CountingTransport, GatewayMetrics
from quintain_gateway.settings import GatewayLimits

#: The age, in seconds, at which the time of the metadata service is requested again.
CLOCK_MAX_AGE_SECONDS = 60.0


def bearer_token(request: Request) -> str:
    """Return the token of ``Authorization: Bearer <token>``. Raises `Unauthorized` if there is none."""
    if token := credentials.bearer_token(request.headers.getlist("authorization")):
        return token
    raise Unauthorized


def model_token(request: Request) -> str:
    """Return the token as the client's model API sends it: clients of Anthropic's may send it as ``x-api-key``."""
    key = request.headers.get("x-api-key") if is_anthropic(request.scope) else None
    return key or bearer_token(request)


class FleetGateway:
    """The connection of all endpoints to the fleet: creates the clients that call the metadata service and the workers.

    Stateless except for one RPC client and the time of the metadata service, by which deadlines are set.
    """

    def __init__(self, rpc_client: RpcClient, clock: Clock, limits: GatewayLimits, metrics: GatewayMetrics) -> None:
        self.rpc_client, self.clock, self.limits, self.metrics = rpc_client, clock, limits, metrics
        metrics.rpc_client = rpc_client
        #: Session key → its running requests.
        self._running = Counter[str]()
        self.bodies = BodyReader(limits)
        #: The calls that go on for the retries of clients that disconnected.
        self.retry_window: RetryWindow = RetryWindow(limits.retry_window_seconds)
        self._info_received_at = -math.inf
        self._sessions = Sessions(rpc_client, clock)
        #: Token → the transport of the session's requests; it is garbage-collected after them and their cancellations.
        self._transports: weakref.WeakValueDictionary[str, CountingTransport] = weakref.WeakValueDictionary()

    async def close(self) -> None:
        """Finish cancelling the calls of disconnected clients, for a few seconds at most. No request may follow."""
        await self.retry_window.close()
        await asyncio.gather(*(transport.close() for transport in list(self._transports.values())))

    async def session_client(self, request: Request, read_token: Callable[[Request], str] = bearer_token) -> Client:
        """Return a client for the session whose token the request carries.

        ``read_token`` finds the token in the request; by default it is the bearer token. Format and checksum of the
        token are checked without I/O; whether the token is valid is decided by the metadata service when a call is
        made. If the time of the metadata service is older than `CLOCK_MAX_AGE_SECONDS`, it is requested first.

        Raises `Unauthorized`, and `SessionBusy` if the session makes too many requests at once.
        """
        token = SessionToken.parse(read_token(request))
        context = context_of(request)
        if not context.session_key:
            context.session_id, context.session_key = token.id, token.sha256.hex()
            self._count_request(context)
        transport = self._transports.get(token.text)
        if transport is None:
            transport = self._transports[token.text] = CountingTransport(
                self.rpc_client, token.text, self._sessions, metrics=self.metrics, on_info=self._on_info
            )
        client = Client(transport)
        if asyncio.get_running_loop().time() - self._info_received_at > CLOCK_MAX_AGE_SECONDS:
            await client.get_info()
        return client

    def admin_client(self, request: Request) -> Admin:
        """Return an admin client with the bearer token of the request; the metadata service checks the token.

        Raises `Unauthorized` if there is no bearer token.
        """
        return Admin(AmqpTransport(self.rpc_client, bearer_token(request)))

    def _count_request(self, context: RequestContext) -> None:
        """Count a request of its session until its end, so that no session takes the connections of all others."""
        key, most = context.session_key, self.limits.max_session_requests
        if self._running[key] >= most:
            raise SessionBusy(
                f"This session has {most} requests at once; no more are accepted until one ends",
                retry_after_ms=BUSY_RETRY_MS,
            )
        self._running[key] += 1
        context.on_end.append(partial(self._end_request, key))

    def _end_request(self, key: str) -> None:
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]

    def _on_info(self, info: Info) -> None:
        self.clock.synchronize(info.now)
        self.metrics.label_targets.update(info.available_targets)
        self._info_received_at = asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def verify_token_on_body_error(client: Client, *, budget_first: bool = False) -> AsyncIterator[None]:
    """Check the session's token before an error in the request body is reported: read and parse the body inside.

    Raises `Unauthorized` in place of `BadRequest` or `PayloadTooLarge` if the token is not valid; with
    ``budget_first`` also `BudgetExhausted` if the session has no calls left.
    """
    try:
        yield
    except (BadRequest, PayloadTooLarge):
        info = await client.get_info()
        if budget_first and info.call_count >= info.max_calls:
            raise BudgetExhausted(f"Max calls exceeded (limit: {info.max_calls})") from None
        raise
