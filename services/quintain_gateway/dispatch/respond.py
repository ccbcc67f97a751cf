"""Makes the calls of one HTTP request and responds with their results: what the endpoints of all model APIs share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from quintain.client.client import Client
from quintain_gateway.dispatch.dispatch import CallGroup, DispatchRequest
from quintain_gateway.dispatch.model_answers import AnswerEncoder
from quintain_gateway.dispatch.response import ResponseWriter
from quintain_gateway.http.context import context_of
from quintain_gateway.http.endpoint import FleetGateway, cancel_on_disconnect
from quintain_gateway.http.retries import retry_identity


async def respond(
    gateway: FleetGateway,
    request: Request,
    client: Client,
    body: bytes,
    dispatch_request: DispatchRequest,
    encoder_of: Callable[[str], AnswerEncoder],
) -> Response:
    """Make the calls of a request and return the response, whole or streamed; cancel them if the client disconnects.

    A retry after a lost connection joins the calls of the request that it repeats. ``body`` is the request's body as
    it was sent, and ``encoder_of`` returns the encoder of the response by the id of its calls. Raises the `Fault` of
    a call that fails before the status is sent.
    """
    limits = gateway.limits
    if not (dispatch_request.stream or limits.early_status or dispatch_request.key.is_from_client):
        # The deadline ends the calls in the fleet when the client's patience with a held status line does.
        deadline_seconds = min(dispatch_request.deadline_seconds, limits.answer_seconds)
        dispatch_request = dataclasses.replace(dispatch_request, deadline_seconds=deadline_seconds)
    calls: CallGroup | None = None
    identity = retry_identity(request, body)
    if identity is not None and identity[1]:
        calls = gateway.retry_window.take(identity[0])
    if calls is None:
        calls = CallGroup(client, dispatch_request)
    if identity is not None:
        calls.keep_for_retry(gateway.retry_window, identity[0])
    writer = ResponseWriter(encoder_of(calls.key.text), calls, context_of(request), limits)
    return await cancel_on_disconnect(
        request, writer.streaming_response() if dispatch_request.stream else writer.json_response()
    )
