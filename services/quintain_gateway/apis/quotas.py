"""``GET /quotas``: what the fleet's provider keys do at present, with a session's token or the admin token."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quintain.contracts.fleet import QuotaList
from quintain_gateway.auth import FleetGateway
from quintain_gateway.endpoint import PLAIN, method_route
from quintain_gateway.errors import JSON_MEDIA_TYPE
from quintain_gateway.openapi import SESSION_TOKEN, Operation, fault_responses

OPERATIONS = (
    Operation(
        "GET",
        "/quotas",
        "Show what each provider key does at present: its limits, and how many calls wait for it",
        token=SESSION_TOKEN,
        responses={200: QuotaList, **fault_responses(401, 431, 500, 503)},
    ),
)


class QuotaEndpoints:
    """The endpoint of quotas."""

    def __init__(self, gateway: FleetGateway) -> None:
        self._gateway = gateway
        self.routes: list[Route] = [method_route("/quotas", {"GET": self.list}, PLAIN.to_endpoint)]

    async def list(self, request: Request) -> Response:
        """``GET /quotas``: return the quotas; the metadata service takes either token."""
        quotas = await self._gateway.admin_client(request).quotas()
        return Response(quotas.to_wire(), media_type=JSON_MEDIA_TYPE)
