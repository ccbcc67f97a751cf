"""What an HTTP endpoint is sent for a call: its template with the values of the call."""

from __future__ import annotations

import json
import uuid
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from pydantic import JsonValue

from quintain.apis.streams import parse_json
from quintain.config.http_targets import HttpTarget
from quintain.config.http_template import fill_template, fill_url
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.quota import TryOutcome
from quintain.errors import BadRequest
from quintain_worker.providers.conversation import ignored_settings, named_messages, refusal, settings_of, text_message
from quintain_worker.providers.model_requests import chat_message
from quintain_worker.providers.provider import Billing, ProviderFailure

#: The longest session of an endpoint, in characters of its JSON: it is a part of each later request.
MAX_SESSION_LENGTH = 64 * 1024


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


def state_of(request: InvokeRequest) -> str | None:
    """Return what an earlier answer said of the conversation."""
    continuation = None if request.turn is None else request.turn.continuation
    return None if continuation is None else continuation.state


def session_of(state: str) -> JsonValue:
    """Return the session that a state is. Raises `ProviderFailure` for what no endpoint has said."""
    try:
        if len(state) <= MAX_SESSION_LENGTH:
            return parse_json(state)  # type: ignore[return-value]
    except ValueError:
        pass
    raise refusal("turn.continuation.state", "not what an answer of this target has")


def last_question(request: InvokeRequest) -> str:
    """Return the text of the last message, which is the user's. Raises `ProviderFailure`."""
    last = text_message(*named_messages(request)[-1])
    if last.role != "user":
        raise refusal(f"{last.field}.role", "the last message of a turn is the user's")
    return last.text


def _json_bytes(value: object) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
