"""The A2A protocol over JSON-RPC: a message starts a task, which is asked for until it ends.

Version 1.0, and 0.3 of a server that has no method of 1.0. A task waits for nobody's connection: it is asked for with
growing intervals, and cancelled where nobody waits any more. https://a2a-protocol.org/latest/specification/
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from quintain.apis.answer_json import parse_json, says_something
from quintain.apis.translation import Json, objects
from quintain.contracts.agents import AgentStep, Continuation
from quintain.contracts.invoke import InvokeRequest
from quintain.runtime.http_client import ConnectionLost, HttpClient, NotSent
from quintain_worker.providers.agents.failures import (
    FAILED,
    GAVE_UP,
    LOST_CONVERSATION,
    REJECTED,
    UNREADABLE,
    AgentFailures,
)
from quintain_worker.providers.conversation import (
    MAX_SESSION_LENGTH,
    ignored_settings,
    last_question,
    refusal,
    session_of,
    state_of,
)
from quintain_worker.providers.model_api import read_body
from quintain_worker.providers.provider import OnText, ProviderAnswer, ProviderFailure, steps_before_failure

#: How long the first wait for a task is, in seconds, how much longer each next one is, and the longest.
FIRST_WAIT_SECONDS, WAIT_FACTOR, LONGEST_WAIT_SECONDS = 0.1, 1.5, 5.0

#: How long the request that cancels a task may take, in seconds.
CANCEL_SECONDS = 2.0

#: The states in which a task goes on by itself.
_RUNNING = frozenset({"submitted", "working", "unknown", "unspecified"})

_TASK_NOT_FOUND: Final = -32001

#: The errors of a server that does not know a request of this version, so that nothing ran: JSON-RPC's for an invalid
#: request and an unknown method, and A2A's for an unknown version.
_OTHER_VERSION = frozenset({-32600, -32601, -32009})

#: The errors that say that the request itself is wrong: JSON-RPC's, and A2A's for content that the agent does not take.
_WRONG_REQUEST = frozenset({-32700, -32600, -32601, -32602, -32005, -32008, -32009})


class Version(NamedTuple):
    """What one version of the protocol calls its methods, roles and options.

    ``return_now`` is the option by which a task is returned before it ends, and its value for that.
    """

    headers: Mapping[str, str]
    send: str
    get: str
    cancel: str
    role: str
    return_now: tuple[str, bool]
    part: Json
    message: Json


VERSIONS: Final = (
    Version(
        headers={"a2a-version": "1.0"},
        send="SendMessage",
        get="GetTask",
        cancel="CancelTask",
        role="ROLE_USER",
        return_now=("returnImmediately", True),
        part={},
        message={},
    ),
    Version(
        headers={},
        send="message/send",
        get="tasks/get",
        cancel="tasks/cancel",
        role="user",
        return_now=("blocking", False),
        part={"kind": "text"},
        message={"kind": "message"},
    ),
)


#: The state of a task that waits for the next message.
INPUT_REQUIRED: Final = "input-required"

#: The HTTP statuses, besides 5xx, of a server that may say later what became of a task.
_TRY_LATER = frozenset({408, 429})

#: The states that a task stays in without an answer.
_OTHER_ENDS = frozenset({"auth-required", "canceled", "failed", "input-required", "rejected"})


class _RpcError(Exception):
    """The agent's server answered with an error of JSON-RPC."""

    def __init__(self, code: int | None, came: bytes) -> None:
        super().__init__("an error without a code" if code is None else f"error {code}")
        self.code, self.came = code, came


class _NotNow(Exception):
    """The agent's server could not say now what became of a task."""


class A2AProvider:
    """Sends each call as one message to an agent, and waits for its task."""

    def __init__(self, name: str, path: str, client: HttpClient, failures: AgentFailures) -> None:
        self._name, self._path, self._client, self._failures = name, path, client, failures
        #: The version that its server takes, once a message was taken.
        self._version: Version | None = None

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Send the message, and return what its task has at its end. Raises `ProviderFailure`.

        ``on_text`` is never called: an artifact counts only once its task has ended.
        """
        ignored = ignored_settings(request.settings, f"{self._name}, an A2A agent,")
        message, session = _message_of(request)
        ends_at = asyncio.get_running_loop().time() + timeout_seconds
        with self._failures.of_connection():
            try:
                version, reply = await self._send(message, ends_at)
            except _RpcError as error:
                kind = REJECTED if error.code in _WRONG_REQUEST else FAILED
                if error.code == _TASK_NOT_FOUND and session:
                    kind = LOST_CONVERSATION
                raise self._failures.of_error(kind, str(error), error.came) from None
            if reply.is_task:
                reply = await self._wait_for(version, reply, ends_at)
        steps = reply.steps_since(message["messageId"], session.get("asked"))
        with steps_before_failure(lambda: (steps, None)):
            self._check_end(reply, is_turn=request.turn is not None)
            return dataclasses.replace(self._answer_of(reply, request), steps=steps, ignored=ignored)

    async def close(self) -> None:
        """Close the HTTP connections."""
        await self._client.close()

    async def _send(self, message: Json, ends_at: float) -> tuple[Version, A2AReply]:
        for version in VERSIONS if self._version is None else (self._version,):
            parts = [{**version.part, **part} for part in message["parts"]]
            # A task that waits for this message is returned as it was if it is returned at once.
            option, now = version.return_now
            params = {
                "message": {**message, **version.message, "role": version.role, "parts": parts},
                "configuration": {
                    "acceptedOutputModes": ["text/plain", "application/json"],
                    option: now != ("taskId" in message),
                },
            }
            try:
                reply = await self._ask(version, version.send, params, ends_at)
            except _RpcError as error:
                if error.code in _OTHER_VERSION and version is not VERSIONS[-1] and self._version is None:
                    continue
                raise
            self._version = version
            return version, reply
        raise AssertionError("the last version returns or raises")

    async def _wait_for(self, version: Version, reply: A2AReply, ends_at: float) -> A2AReply:
        """Ask for a task until it ends, or waits for somebody. Raises `TimeoutError`."""
        seconds, task = FIRST_WAIT_SECONDS, {"id": reply.values["id"]}
        try:
            async with asyncio.timeout_at(ends_at):
                while reply.state in _RUNNING:
                    await asyncio.sleep(seconds)
                    seconds = min(seconds * WAIT_FACTOR, LONGEST_WAIT_SECONDS)
                    # To ask for a task changes nothing, so that it may be asked for again.
                    with contextlib.suppress(NotSent, ConnectionLost, _NotNow):
                        reply = await self._ask(version, version.get, task, ends_at)
        except _RpcError as error:
            raise self._failures.of_error(GAVE_UP, f"its task: {error}", error.came) from None
        except (TimeoutError, asyncio.CancelledError):
            with contextlib.suppress(NotSent, ConnectionLost, TimeoutError, ProviderFailure, _RpcError, _NotNow):
                now = asyncio.get_running_loop().time()
                await self._ask(version, version.cancel, task, now + CANCEL_SECONDS)
            raise
        return reply

    async def _ask(self, version: Version, method: str, params: Json, ends_at: float) -> A2AReply:
        """Make one request of JSON-RPC."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        timeout_seconds = ends_at - asyncio.get_running_loop().time()
        async with self._client.request("POST", self._path, body, version.headers, timeout_seconds) as response:
            came = await read_body(response)
            if not 200 <= response.status < 300:
                if method != version.send and (response.status in _TRY_LATER or response.status >= 500):
                    raise _NotNow
                raise self._failures.of_status(response.status, response.headers, came)
        try:
            values = parse_json(came)
        except ValueError:
            values = None
        if isinstance(values, dict) and says_something(error := values.get("error")):
            code = error.get("code") if isinstance(error, dict) else None
            raise _RpcError(code if type(code) is int else None, came)
        result = values.get("result") if isinstance(values, dict) else None
        reply = None if not isinstance(result, dict) else read_reply(result, came)
        if reply is None:
            raise self._failures.of_error(UNREADABLE, "it has neither a task nor a message", came)
        return reply

    def _check_end(self, reply: A2AReply, *, is_turn: bool) -> None:
        """Raise the failure of a task that has ended otherwise than with an answer."""
        state = reply.state
        if state == "completed" or (state == INPUT_REQUIRED and is_turn):
            return
        shown = state if state in _OTHER_ENDS else "in a state of no known name"
        kind = REJECTED if state == "rejected" else GAVE_UP
        raise self._failures.of_error(kind, f"its task is {shown}", reply.text or reply.came)

    def _answer_of(self, reply: A2AReply, request: InvokeRequest) -> ProviderAnswer:
        if not reply.text:
            raise self._failures.of_error(UNREADABLE, "there is no text in it", reply.came)
        continuation = None
        if request.turn is not None:
            named = reply.conversation
            written = json.dumps(named)
            if "contextId" not in named or len(written) > MAX_SESSION_LENGTH:
                raise self._failures.of_error(UNREADABLE, "it has no contextId for the next turn", reply.came)
            continuation = Continuation(state=written)
        return ProviderAnswer(text=reply.text, continuation=continuation)


def _message_of(request: InvokeRequest) -> tuple[Json, dict[str, str]]:
    """Return the message of a call, and the session that it goes on from. Raises `ProviderFailure`."""
    if request.system_prompt:
        raise refusal("systemPrompt", "an A2A agent has its own")
    state = state_of(request)
    if state is None and request.turn is not None and request.turn.number > 1:
        raise refusal("turn.continuation", "it has no state, so that the agent cannot find the conversation")
    if state is None and len(request.messages or ()) > 1:
        raise refusal("messages", "an A2A agent takes one message, and keeps the earlier ones itself")
    session = {} if state is None else session_of(state)
    if not isinstance(session, dict) or not all(isinstance(value, str) for value in session.values()):
        raise refusal("turn.continuation.state", "not what an answer of this target has")
    known: dict[str, str] = {name: str(value) for name, value in session.items()}
    ids: Json = {name: known[name] for name in ("contextId", "taskId") if name in known}
    return {"messageId": str(uuid.uuid4()), "parts": [{"text": last_question(request)}], **ids}, known


@dataclass(frozen=True, slots=True)
class A2AReply:
    """A task, or a message that an agent answered with at once. ``came`` is the response that it was in."""

    values: Json
    came: bytes
    is_task: bool

    @property
    def state(self) -> str:
        """The state of the task, as version 0.3 writes it; of a message ``completed``."""
        if not self.is_task:
            return "completed"
        state = str(self.values["status"].get("state"))
        return state.removeprefix("TASK_STATE_").lower().replace("_", "-")

    @property
    def text(self) -> str:
        """The text of the task's artifacts, or else of the message about its state, or else of its last message."""
        if not self.is_task:
            return _text_of(self.values)
        said = [_text_of(self.values["status"].get("message"))]
        said += [_text_of(message) for message in reversed(objects(self.values.get("history"))) if _is_agents(message)]
        made = [_text_of(artifact) for artifact in objects(self.values.get("artifacts"))]
        made = ["\n\n".join(filter(None, made))]
        # What asks for input is in its message, whatever the task has made so far.
        texts = [*said[:1], *made, *said[1:2]] if self.state == INPUT_REQUIRED else [*made, *said[:2]]
        return next(filter(None, texts), "")

    @property
    def conversation(self) -> Json:
        """What the next message names: the context, and where the task waits for it that task, and what it asked."""
        names = {"contextId": self.values.get("contextId")}
        if self.is_task and self.state == INPUT_REQUIRED:
            asked = self.values["status"].get("message")
            names |= {"taskId": self.values["id"], "asked": asked.get("messageId") if isinstance(asked, dict) else None}
        return {name: value for name, value in names.items() if isinstance(value, str) and value}

    def steps_since(self, message_id: str, asked: str | None) -> tuple[AgentStep, ...]:
        """Return what the agent has said in the task's history since the message of this id, each as a step.

        ``asked`` is the id of what it asked before, which servers put there once it is answered.
        """
        history = objects(self.values.get("history")) if self.is_task else []
        ours = [index for index, message in enumerate(history) if message.get("messageId") == message_id]
        since = history[ours[-1] + 1 :] if ours else history
        return tuple(
            AgentStep.model_validate({"operation": "invoke_agent", "messages": [_output_of(message)]})
            for message in since
            if _is_agents(message) and (asked is None or message.get("messageId") != asked)
        )


def read_reply(result: Json, came: bytes) -> A2AReply | None:
    """Return the task or the message in a result; None where there is neither."""
    task = result.get("task", result)
    if isinstance(task, dict) and isinstance(task.get("id"), str) and isinstance(task.get("status"), dict):
        return A2AReply(task, came, is_task=True)
    message = result.get("message", result)
    if isinstance(message, dict) and isinstance(message.get("parts"), list):
        return A2AReply(message, came, is_task=False)
    return None


def _output_of(message: Json) -> Json:
    return {"role": "assistant", "parts": [{"type": "text", "content": _text_of(message)}]}


def _is_agents(message: Json) -> bool:
    return message.get("role") in ("agent", "ROLE_AGENT")


def _text_of(holder: object) -> str:
    return "".join(_texts_of(holder.get("parts"))) if isinstance(holder, dict) else ""


def _texts_of(parts: object) -> Iterator[str]:
    for part in objects(parts):
        if isinstance(text := part.get("text"), str):
            yield text
        elif "data" in part:
            yield json.dumps(part["data"], ensure_ascii=False)
        else:
            inner = part.get("file")
            file = inner if isinstance(inner, dict) else part
            named = (file.get(name) for name in ("filename", "name", "url", "uri"))
            yield f"[file {next((name for name in named if isinstance(name, str) and name), 'without a name')}]"
