"""The provider of models: each try is one request to OpenAI's or Anthropic's API, or to a server that speaks them."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp

from quintain.apis.answer_json import UnreadableAnswer, parse_json
from quintain.apis.chat import join_texts
from quintain.apis.streams import DONE, EVENT_STREAM, EventReader, error_in
from quintain.apis.translation import Json
from quintain.config.targets import AnthropicTarget, OpenAITarget
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.message import MAX_BODY_BYTES
from quintain.contracts.money import MAX_COST_USD
from quintain.contracts.quota import RateReport, TryOutcome
from quintain.errors import BadRequest, ConfigError, ReplyTooLarge
from quintain.runtime.http_client import ConnectionLost, HttpClient, NotSent
from quintain_worker.providers.model_answers import ProviderReply
from quintain_worker.providers.model_failures import (
    FAILED,
    NOT_WRITABLE,
    STREAM_INTERRUPTED,
    UNREADABLE,
    FailureKind,
    FailureReader,
    failures_of_exchange,
)
from quintain_worker.providers.model_requests import PATHS, ProviderCall, RequestBuilder
from quintain_worker.providers.provider import (
    ApiProvider,
    AskBill,
    Billing,
    OnText,
    ProviderAnswer,
    ProviderContext,
    ProviderFailure,
    next_join,
    no_bill,
)
from quintain_worker.providers.rate_limits import read_rate_report

#: The version of Anthropic's API, which its requests name.
ANTHROPIC_VERSION = "2023-06-01"

#: How long an idle connection is kept, in seconds.
KEEPALIVE_SECONDS = 60.0

#: How long more is waited for once a streamed answer is complete, in seconds: for the usage of a chat completion, and
#: then for the end of the stream, after which its connection can be used again.
USAGE_SECONDS, END_SECONDS = 5.0, 0.25

#: The hosts of the vendors that tell what a generation cost, by its id, as OpenRouter does at ``GET /generation``
#: (https://openrouter.ai/docs/api/api-reference/generations/get-generation).
TELL_BILLS = frozenset({"openrouter.ai"})

#: How long is waited before each question for a bill, in seconds: a record is there some seconds after its generation.
BILL_WAITS = (1.0, 2.0, 4.0)

#: How long one answer to it may take, in seconds, and the ids that are asked for.
BILL_SECONDS, _GENERATION_ID = 5.0, re.compile(r"[!-~]{1,200}")


def model_provider(name: str, target: OpenAITarget | AnthropicTarget, context: ProviderContext) -> ModelProvider:
    """Create the provider of a model. Raises `ConfigError` for settings that its API lacks."""
    requests = RequestBuilder(target)
    try:
        requests.check_defaults()
    except BadRequest as fault:
        raise ConfigError(f"targets.{name}.{fault.message}") from None
    key = target.key
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    if isinstance(target, AnthropicTarget):
        headers["anthropic-version"] = ANTHROPIC_VERSION
    # Calls are bounded by the slots of their target, and connections by the calls.
    client = HttpClient(
        target.url, headers, context.env, keepalive_seconds=KEEPALIVE_SECONDS, idle_seconds=target.idle_seconds
    )
    return ModelProvider(target, requests, client)


class ModelProvider(ApiProvider):
    """Sends each call to a model as one HTTP request."""

    def __init__(self, target: OpenAITarget | AnthropicTarget, requests: RequestBuilder, client: HttpClient) -> None:
        self._requests, self._client = requests, client
        self._failures = FailureReader(target)
        self._tells_bills = urlsplit(target.url).hostname in TELL_BILLS

    def check(self, request: ApiRequest) -> None:
        """Check what a caller asks of the provider. Raises `BadRequest`, which names the field."""
        self._requests.check(request)

    async def answer(
        self, request: InvokeRequest | ApiRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Request the model's answer within ``timeout_seconds``, streamed if ``on_text`` is given.

        Raises `ProviderFailure`.
        """
        stream = on_text is not None
        try:
            if isinstance(request, ApiRequest):
                call, caller_api = self._requests.of_api_request(request, stream=stream), request.api
            else:
                call, caller_api = self._requests.of_conversation(request, stream=stream), None
        except BadRequest as fault:
            raise ProviderFailure(fault, Billing.UNBILLED, outcome=TryOutcome.NOT_SENT) from None
        except ValueError:
            # A number that became NaN after it was checked.
            raise self._failures.of_error(NOT_WRITABLE) from None
        reply = ProviderReply(call.api, caller_api, on_text)
        try:
            answer = await self._answer(call, reply, timeout_seconds, stream=stream)
        except ProviderFailure as failure:
            failure.ask_bill = self._ask_bill(call, reply)
            raise
        return dataclasses.replace(answer, ask_bill=self._ask_bill(call, reply)) if self._tells_bills else answer

    async def _answer(
        self, call: ProviderCall, reply: ProviderReply, timeout_seconds: float, *, stream: bool
    ) -> ProviderAnswer:
        try:
            with failures_of_exchange(self._failures.of_error):
                rates = await self._exchange(call, reply, timeout_seconds, stream=stream)
                answer = reply.answer(call.ignored)
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            # An answer of another shape than its API's. Not chained: its text is the model's.
            reason = str(error) if isinstance(error, UnreadableAnswer) else ""
            raise self._failures.of_error(UNREADABLE, reason) from None
        return answer if rates is None else dataclasses.replace(answer, rates=rates)

    def _ask_bill(self, call: ProviderCall, reply: ProviderReply) -> AskBill:
        """Return how the vendor is asked what this generation cost, if it tells that, and by which id."""
        if not self._tells_bills or not _GENERATION_ID.fullmatch(reply.generation_id):
            return no_bill
        version = "/v1" if call.api == "messages" else ""
        path = f"{version}/generation?{urlencode({'id': reply.generation_id})}"
        return partial(self._bill, path)

    async def _bill(self, path: str) -> float | None:
        for seconds in BILL_WAITS:
            await asyncio.sleep(seconds)
            try:
                async with self._client.request("GET", path, None, {}, BILL_SECONDS) as response:
                    body = parse_json(await read_body(response)) if response.status == HTTPStatus.OK else {}
            except (NotSent, ConnectionLost, TimeoutError, ReplyTooLarge, ValueError, RecursionError):
                continue
            record = body.get("data") if isinstance(body, dict) else None
            if not isinstance(record, dict):
                continue
            usd = record.get("total_cost")
            if isinstance(usd, int | float) and not isinstance(usd, bool):
                # With a key of one's own at the model's vendor, that one bills too.
                return float(usd) if 0 <= usd <= MAX_COST_USD and not record.get("is_byok") else None
        return None

    async def close(self) -> None:
        """Close the HTTP connections."""
        await self._client.close()

    async def _exchange(
        self, call: ProviderCall, reply: ProviderReply, timeout_seconds: float, *, stream: bool
    ) -> RateReport | None:
        """Send the request and read the reply; returns what its headers say of the key's limits."""
        request = self._client.request("POST", PATHS[call.api], call.body, call.headers, timeout_seconds)
        async with request as response:
            if not 200 <= response.status < 300:
                raise await self._status_failure(response) from None
            reply.generation_id = response.headers.get("x-generation-id", "")
            rates = read_rate_report(response.headers, time.time())
            # Some servers answer whole, or as a stream, whatever they are asked for.
            if response.content_type == EVENT_STREAM or (stream and response.content_type != "application/json"):
                await self._read_stream(response, reply)
            else:
                self._read_whole(await read_body(response), reply)
            return rates

    def _read_whole(self, body: bytes, reply: ProviderReply) -> None:
        whole = parse_json(body)
        if not isinstance(whole, dict):
            raise UnreadableAnswer("it is no JSON object")
        self._check(whole, FAILED)
        reply.set_whole(whole)

    def _check(self, answer: Json, kind: FailureKind) -> None:
        """Raise the failure that a whole answer, or an event, says itself."""
        if (error := error_in(answer)) is not None:
            raise self._failures.of_error(kind, body=error)
        if answer.get("error") is not None:
            # Clients take one that says nothing for an error.
            del answer["error"]

    async def _status_failure(self, response: aiohttp.ClientResponse) -> ProviderFailure:
        raw = await read_body(response)
        try:
            body = parse_json(raw)
        except ValueError:
            body = raw.decode(errors="replace")
        return self._failures.of_status(response.status, response.headers, body)

    async def _read_stream(self, response: aiohttp.ClientResponse, reply: ProviderReply) -> None:
        unread = list[bytes]()
        try:
            async with asyncio.timeout(None) as patience:
                await self._read_events(response, reply, unread, patience)
        except (aiohttp.ClientError, TimeoutError):
            # What becomes of the connection changes no answer that is complete.
            if not reply.is_complete:
                raise
        if not reply.has_begun and (whole := b"".join(unread).lstrip()).startswith(b"{"):
            # A whole answer that does not say that it is one.
            self._read_whole(whole, reply)
        elif not reply.is_complete:
            raise self._failures.of_error(STREAM_INTERRUPTED)

    async def _read_events(
        self, response: aiohttp.ClientResponse, reply: ProviderReply, unread: list[bytes], patience: asyncio.Timeout
    ) -> None:
        """Read a stream; what comes before its first event is also added to ``unread``."""
        reader, loop = EventReader(), asyncio.get_running_loop()
        async for data in read_stream(response):
            if not reply.has_begun:
                unread.append(data)
            self._feed(reply, reader.feed(data))
            if reply.has_ended:
                break
            if reply.is_complete:
                patience.reschedule(loop.time() + USAGE_SECONDS)
        else:
            self._feed(reply, reader.end())
        if not response.content.is_eof():
            patience.reschedule(loop.time() + END_SECONDS)
            await response.content.readany()

    def _feed(self, reply: ProviderReply, events: Iterator[Any]) -> None:
        """Pass events on, up to the last one."""
        chunks: list[Json] = []
        may_join = reply.may_join_texts
        try:
            for event in events:
                if event == DONE:
                    reply.end()
                    break
                if not isinstance(event, dict):
                    raise UnreadableAnswer("an event is no JSON object")
                self._check(event, STREAM_INTERRUPTED)
                if may_join:
                    chunks.append(event)
                    continue
                reply.feed(event)
                if reply.has_ended:
                    break
        finally:
            # Also what came before garbage.
            for chunk in join_texts(chunks):
                reply.feed(chunk)


#: The largest answer of a provider, in bytes: a larger one fits into no reply.
MAX_ANSWER_BYTES = 2 * MAX_BODY_BYTES

#: The longest stream, in bytes: its events say more about each piece than the piece is long.
MAX_STREAM_BYTES = 4 * MAX_ANSWER_BYTES

#: From so many bytes on, a piece of a stream is followed by the next one without a pause.
MIN_BULK_BYTES = 64 * 1024


async def read_body(response: aiohttp.ClientResponse) -> bytes:
    """Read a whole body. Raises `ReplyTooLarge` for one that fits into no reply."""
    pieces: list[bytes] = []
    size = 0
    while piece := await response.content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise ReplyTooLarge(f"The provider's answer has more than {MAX_ANSWER_BYTES} bytes")
    return b"".join(pieces)


async def read_stream(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield a body as it comes, joined as chunks are (`next_join`).

    Raises `ReplyTooLarge` for one that is longer than any answer.
    """
    size, loop = 0, asyncio.get_running_loop()
    paused: asyncio.Transport | None = None
    resume: asyncio.TimerHandle | None = None
    try:
        while piece := await response.content.readany():
            size += len(piece)
            if size > MAX_STREAM_BYTES:
                raise ReplyTooLarge(f"The provider's stream has more than {MAX_STREAM_BYTES} bytes")
            yield piece
            # Without a connection all of it was read.
            paused = None if response.connection is None else response.connection.transport
            if paused is not None and len(piece) < MIN_BULK_BYTES:
                # What comes until then is left to the system: to read each event alone costs more than the event.
                paused.pause_reading()
                resume = loop.call_at(next_join(loop.time()), paused.resume_reading)
    finally:
        if resume is not None:
            resume.cancel()
        if paused is not None:
            paused.resume_reading()
