"""The provider of agents behind an HTTP endpoint: each try is one request, made of a template."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from pydantic import JsonValue

from quintain.apis.answer_json import UnreadableAnswer, parse_json
from quintain.apis.reported_steps import read_steps
from quintain.apis.streams import DONE, EVENT_STREAM, EventReader, error_in
from quintain.config.http_targets import HttpTarget
from quintain.config.http_template import fill_template, fill_url, find
from quintain.contracts.agents import AgentStep, Continuation
from quintain.contracts.invoke import InvokeRequest, TokenUsage
from quintain.contracts.quota import TryOutcome
from quintain.errors import BadRequest
from quintain.runtime.http_client import HttpClient
from quintain_worker.providers.agents.a2a import A2AProvider
from quintain_worker.providers.agents.failures import FAILED_INSIDE, STREAM_INTERRUPTED, UNREADABLE, AgentFailures
from quintain_worker.providers.conversation import (
    MAX_SESSION_LENGTH,
    ignored_settings,
    last_question,
    named_messages,
    refusal,
    session_of,
    settings_of,
    state_of,
)
from quintain_worker.providers.model_api import KEEPALIVE_SECONDS, read_body, read_stream
from quintain_worker.providers.model_requests import chat_message
from quintain_worker.providers.provider import (
    Billing,
    OnText,
    Provider,
    ProviderAnswer,
    ProviderContext,
    ProviderFailure,
    steps_before_failure,
)
from quintain_worker.providers.rate_limits import read_rate_report

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
        call, answer = self._requests.of_call(request), HttpAnswer(self._target, on_text)
        with steps_before_failure(answer.steps_so_far), self._failures.of_connection():
            sent = self._client.request(self._target.method, call.path, call.body, {}, timeout_seconds)
            async with sent as response:
                return await self._read(response, request, call, answer)

    async def close(self) -> None:
        """Close the HTTP connections."""
        await self._client.close()

    async def _read(
        self, response: aiohttp.ClientResponse, request: InvokeRequest, call: HttpCall, answer: HttpAnswer
    ) -> ProviderAnswer:
        if not 200 <= response.status < 300:
            body, names_session = await read_body(response), call.state is not None
            raise self._failures.of_status(response.status, response.headers, body, names_session=names_session)
        # Some servers answer whole, whatever they are asked for.
        if self._target.stream is not None and response.content_type == EVENT_STREAM:
            came = await self._read_stream(response, answer)
        else:
            came = await read_body(response)
            if self._target.answer is None and self._target.stream is None:
                return ProviderAnswer(text=came.decode(errors="replace"), ignored=call.ignored)
            try:
                whole = parse_json(came)
            except UnreadableAnswer as error:
                raise self._failures.of_error(UNREADABLE, str(error), came) from None
            self._check(whole)
            answer.feed(whole)
        try:
            found = answer.answer(call.state, is_turn=request.turn is not None)
        except ValueError as error:
            raise self._failures.of_error(UNREADABLE, str(error), came) from None
        return dataclasses.replace(found, ignored=call.ignored, rates=read_rate_report(response.headers, time.time()))

    def _check(self, document: object) -> None:
        """Raise the failure that an answer, or an event, says itself, unless the answer is looked for in its error."""
        error = error_in(document) if isinstance(document, dict) else None
        if error is not None and not (self._target.answer or "").startswith("/error"):
            raise self._failures.of_error(FAILED_INSIDE, "it says so itself", json.dumps(error))

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

    def _feed(self, answer: HttpAnswer, events: Iterator[Any]) -> bool:
        """Read events; returns whether the answer has ended."""
        try:
            for event in events:
                if event == DONE:
                    return True
                self._check(event)
                answer.feed(event)
                if answer.has_ended:
                    return True
        except UnreadableAnswer as error:
            raise self._failures.of_error(STREAM_INTERRUPTED, str(error), error.came) from None
        return False


class HttpCall(NamedTuple):
    """One request to an endpoint. ``state`` is the session that it names, and ``ignored`` the settings left out."""

    path: str
    body: bytes | None
    state: str | None
    ignored: tuple[str, ...]


class HttpRequests:
    """Builds the requests to one endpoint."""

    def __init__(self, name: str, target: HttpTarget) -> None:
        self._name, self._target = name, target
        self._used = target.placeholders
        self._path = split_url(target)[1]

    def of_call(self, request: InvokeRequest) -> HttpCall:
        """Return the request for a call. Raises `ProviderFailure` for what the endpoint cannot be told."""
        takes_settings = "settings" in self._used
        ignored = ignored_settings(request.settings, f"{self._name}, an endpoint,", takes_all=takes_settings)
        state = state_of(request)
        values: dict[str, JsonValue] = {
            "prompt": "",
            "system_prompt": request.system_prompt,
            "session": None if state is None else session_of(state),
            # A call that is in no conversation is one of its own.
            "conversation_id": uuid.uuid4().hex if request.turn is None else request.turn.conversation_id,
            "settings": None if request.settings is None else settings_of(request.settings),
        }
        if "messages" in self._used:
            messages = named_messages(request)[bool(request.system_prompt and "system_prompt" in self._used) :]
            values["messages"] = [chat_message(message) for _, message in messages]
        if "prompt" in self._used:
            values["prompt"] = self._prompt(request, state)
        try:
            path = fill_url(self._path, values)
            body = None if self._target.body is None else _json_bytes(fill_template(self._target.body, values))
        except ValueError as error:
            fault = BadRequest(f"{self._name} cannot be sent this request; nothing was sent: {error}")
            raise ProviderFailure(fault, Billing.UNBILLED, outcome=TryOutcome.NOT_SENT) from None
        return HttpCall(path, body, state if "session" in self._used else None, ignored)

    def _prompt(self, request: InvokeRequest, state: str | None) -> str:
        """Return the text of the last message: all that the endpoint does not know yet, unless it gets all messages."""
        if "messages" in self._used:
            return last_question(request)
        if request.system_prompt and "system_prompt" not in self._used:
            raise refusal("systemPrompt", "the request of this endpoint has no place for {{ system_prompt }}")
        number = 1 if request.turn is None else request.turn.number
        if number == 1 and len(request.messages or ()) > 1:
            raise refusal("messages", "the request of this endpoint has no place for {{ messages }}")
        if number > 1:
            if not self._target.keeps_conversation:
                raise refusal("turn", "this endpoint keeps no conversation; its body may have {{ messages }}")
            if "conversation_id" not in self._used and state is None:
                raise refusal("turn.continuation", "it has no state, so that the endpoint cannot find the conversation")
        return last_question(request)


def split_url(target: HttpTarget) -> tuple[str, str]:
    """Return the URL of a target's server, and the path there with its query."""
    parts = urlsplit(target.url)
    return f"{parts.scheme}://{parts.netloc}", urlunsplit(("", "", parts.path or "/", parts.query, ""))


def _json_bytes(value: object) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


class HttpAnswer:
    """The answer to one call, as far as it has come. ``has_ended``: an event said that it was the last one."""

    def __init__(self, target: HttpTarget, on_text: OnText | None) -> None:
        self._target, self._on_text = target, on_text
        usage = target.usage
        pointers = {
            "answer": target.answer,
            "session": target.session,
            "steps": target.steps,
            "input": None if usage is None else usage.input,
            "output": None if usage is None else usage.output,
        }
        self._pointers = {name: pointer for name, pointer in pointers.items() if pointer is not None}
        self._found: dict[str, object] = {}
        self._texts: list[str] = []
        self.has_ended = False

    def feed(self, document: object) -> None:
        """Add the whole answer, or the next event: what is found in a later one replaces what was found before."""
        for name, pointer in self._pointers.items():
            if (found := find(document, pointer)) is not None:
                self._found[name] = found
        stream = self._target.stream
        if stream is None:
            return
        piece = None if stream.text is None else find(document, stream.text)
        if isinstance(piece, str):
            self._texts.append(piece)
            if piece and self._on_text is not None:
                self._on_text(piece)
        if stream.end is not None and find(document, stream.end) not in (None, False):
            self.has_ended = True

    def answer(self, state: str | None, *, is_turn: bool) -> ProviderAnswer:
        """Return the answer. Raises `ValueError`, which says what was not found, or cannot be used.

        ``state`` is the session that the request named, and ``is_turn`` says that a later one may.
        """
        return ProviderAnswer(
            text=self._text(),
            token_usage=self._usage(),
            steps=self._steps(),
            continuation=self._continuation(state) if is_turn and self._target.session is not None else None,
        )

    def _text(self) -> str:
        stream = self._target.stream
        if stream is not None and stream.text is not None:
            if not self._texts:
                raise ValueError(f"stream.text: no event has a text at {stream.text!r}")
            return "".join(self._texts)
        if "answer" not in self._found:
            raise ValueError(f"answer: {self._target.answer!r} finds nothing")
        found = self._found["answer"]
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    def _usage(self) -> TokenUsage | None:
        counts = [self._found.get(name) for name in ("input", "output")]
        # What is no count says nothing, as in models' answers.
        if not all(type(count) is int for count in counts):
            return None
        usage = TokenUsage.model_validate(dict(zip(("input", "output"), counts, strict=True)))
        return usage if usage.is_plausible else None

    def _continuation(self, state: str | None) -> Continuation:
        found = self._found.get("session")
        session = state if found is None else json.dumps(found)
        if session is None:
            raise ValueError(f"session: {self._target.session!r} finds nothing")
        if len(session) > MAX_SESSION_LENGTH:
            raise ValueError(f"session: it has more than {MAX_SESSION_LENGTH} characters")
        return Continuation(state=session)

    def steps_so_far(self) -> tuple[tuple[AgentStep, ...], None]:
        """Return the steps of a call that failed; none where what was found is no list of steps."""
        with contextlib.suppress(ValueError):
            return self._steps(), None
        return (), None

    def _steps(self) -> tuple[AgentStep, ...]:
        if "steps" not in self._found:
            # An agent that did nothing may say nothing.
            return ()
        try:
            return read_steps(self._found["steps"])
        except ValueError as error:
            raise ValueError(f"steps: {error}") from None
