"""The provider of agents behind an HTTP endpoint: each try is one request, made of a template."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import aiohttp

from quintain.apis.streams import DONE, EventReader, parse_json
from quintain.config.http_targets import HttpTarget
from quintain.contracts.invoke import InvokeRequest
from quintain.runtime.http_client import HttpClient
from quintain_worker.providers.a2a import A2AProvider
from quintain_worker.providers.agent_failures import STREAM_INTERRUPTED, UNREADABLE, AgentFailures
from quintain_worker.providers.http_answer import HttpAnswer
from quintain_worker.providers.http_request import HttpCall, HttpRequests, split_url
from quintain_worker.providers.model_api import KEEPALIVE_SECONDS, read_body, read_stream
from quintain_worker.providers.provider import OnText, Provider, ProviderAnswer, ProviderContext
from quintain_worker.providers.rate_limits import read_rate_report

EVENT_STREAM = "text/event-stream"

#: How much of a stream is kept to be quoted, in bytes.
_KEPT_BYTES = 2048


def http_provider(name: str, target: HttpTarget, context: ProviderContext) -> Provider:
    """Create the provider of an HTTP endpoint."""
    given = {header.lower(): value for header, value in target.headers.items()}
    accepted = "application/json" if target.stream is None else f"{EVENT_STREAM}, application/json"
    # Calls are bounded by the slots of their target, and connections by the calls.
    client = HttpClient(
        split_url(target)[0],
        {"accept": accepted, "content-type": "application/json", **given},
        context.env,
        keepalive_seconds=KEEPALIVE_SECONDS,
        idle_seconds=target.idle_seconds,
    )
    failures = AgentFailures(name, target)
    if target.preset is not None:
        return A2AProvider(name, split_url(target)[1], client, failures)
    return HttpProvider(name, target, client, failures)


class HttpProvider:
    """Sends each call to an endpoint as one HTTP request."""

    def __init__(self, name: str, target: HttpTarget, client: HttpClient, failures: AgentFailures) -> None:
        self._target, self._client, self._failures = target, client, failures
        self._requests = HttpRequests(name, target)

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Request the endpoint's answer within ``timeout_seconds``. Raises `ProviderFailure`."""
        call = self._requests.of_call(request)
        with self._failures.of_connection():
            sent = self._client.request(self._target.method, call.path, call.body, {}, timeout_seconds)
            async with sent as response:
                return await self._read(response, request, call, on_text)

    async def close(self) -> None:
        """Close the HTTP connections."""
        await self._client.close()

    async def _read(
        self, response: aiohttp.ClientResponse, request: InvokeRequest, call: HttpCall, on_text: OnText | None
    ) -> ProviderAnswer:
        if not 200 <= response.status < 300:
            body, names_session = await read_body(response), call.state is not None
            raise self._failures.of_status(response.status, response.headers, body, names_session=names_session)
        answer = HttpAnswer(self._target, on_text)
        # Some servers answer whole, whatever they are asked for.
        if self._target.stream is not None and response.content_type == EVENT_STREAM:
            came = await self._read_stream(response, answer)
        else:
            came = await read_body(response)
            if self._target.answer is None and self._target.stream is None:
                return ProviderAnswer(text=came.decode(errors="replace"), ignored=call.ignored)
            try:
                answer.feed(parse_json(came))
            except ValueError:
                raise self._failures.of_error(UNREADABLE, "it is no JSON", came) from None
        try:
            found = answer.answer(call.state, is_turn=request.turn is not None)
        except ValueError as error:
            raise self._failures.of_error(UNREADABLE, str(error), came) from None
        return dataclasses.replace(found, ignored=call.ignored, rates=read_rate_report(response.headers, time.time()))

    async def _read_stream(self, response: aiohttp.ClientResponse, answer: HttpAnswer) -> bytes:
        """Read a stream up to its end; returns its beginning."""
        reader, came, has_ended = EventReader(), b"", False
        async for data in read_stream(response):
            came += data[: max(0, _KEPT_BYTES - len(came))]
            if has_ended := self._feed(answer, reader.feed(data)):
                break
        else:
            has_ended = self._feed(answer, reader.end())
        if not has_ended and self._target.stream is not None and self._target.stream.end is not None:
            raise self._failures.of_error(STREAM_INTERRUPTED, "stream.end was in no event", came)
        return came

    def _feed(self, answer: HttpAnswer, texts: Iterator[str]) -> bool:
        """Read events; returns whether the answer has ended."""
        for text in texts:
            if text == DONE:
                return True
            try:
                answer.feed(parse_json(text))
            except ValueError:
                raise self._failures.of_error(STREAM_INTERRUPTED, "an event is no JSON", text) from None
            if answer.has_ended:
                return True
        return False
