"""An HTTP endpoint as a target, over a real socket: what it is sent, and what of its answer counts.

`tests/conformance/test_agent_billing_table.py` has what is tried again, and what is charged.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import yaml

from quintain.config.loader import load_config
from quintain.contracts.agents import Continuation, Turn
from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings
from quintain.contracts.quota import FailureCause, TryOutcome
from quintain.errors import BadRequest, ProviderFailed, ReplyTooLarge
from quintain_worker.providers import model_api
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import Billing, Provider, ProviderAnswer, ProviderContext, ProviderFailure
from support.model_server import ModelServer, ScriptedResponse, StreamedResponse

KEY = "canary-0123456789"

ASK = {"body": {"input": "{{ prompt }}"}, "answer": "/out"}

Make = Callable[..., Provider]


@pytest.fixture
async def endpoint(server: ModelServer, tmp_path: Path) -> AsyncIterator[Make]:
    """Makes the provider of a target from its configuration, resolved as a worker does it."""
    made: list[Provider] = []

    def make(path: str = "/ask", **keys: object) -> Provider:
        file = tmp_path / "quintain.yaml"
        target = {"provider": "http", "url": f"{server.url}{path}", **keys}
        file.write_text(yaml.safe_dump({"targets": {"bot": target}}))
        resolved = load_config(file).resolve({"BOT_KEY": KEY}).targets["bot"]
        made.append(build_provider("bot", resolved, ProviderContext(tmp_path, {})))
        return made[-1]

    yield make
    for provider in made:
        await provider.close()


def turn(number: int, state: str | None = None) -> Turn:
    continuation = None if state is None else Continuation(state=state)
    return Turn(conversation_id="talk-7", number=number, continuation=continuation)


def talk(*texts: str) -> list[ChatMessage]:
    return [ChatMessage(role=("user", "assistant")[at % 2], content=text) for at, text in enumerate(texts)]


async def ask(provider: Provider, request: InvokeRequest | None = None, seconds: float = 10) -> ProviderAnswer:
    return await provider.answer(request or InvokeRequest(question="q"), timeout_seconds=seconds)


async def failure(provider: Provider, request: InvokeRequest | None = None, seconds: float = 10) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        await ask(provider, request, seconds)
    return caught.value


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def test_values_enter_the_body_as_json_and_longer_strings_as_text(server: ModelServer, endpoint: Make) -> None:
    body = {
        "text": "Q: {{ prompt }} ({{system_prompt}})",
        "history": "{{ messages }}",
        "options": "{{ settings }}",
        "list": ["{{ prompt }}", 1, None, {"deep": "{{ conversation_id }}"}],
        "kept": None,
        "session": "{{ session }}",
    }
    provider = endpoint(method="PUT", body=body, answer="/out", session="/s")
    server.set_responses(ScriptedResponse(body={"out": "A", "s": None}))
    prompt = 'Say "hi",\n{{ session }} \\ \ud83d\ude00'.encode("utf-16", "surrogatepass").decode("utf-16")
    request = InvokeRequest(
        question=prompt, system_prompt="terse", settings=InvokeSettings(temperature=0.5, stop="x"), turn=None
    )
    assert (await ask(provider, request)).text == "A"
    sent = server.requests[0]
    assert (sent.method, sent.path, sent.headers["content-type"]) == ("PUT", "/ask", "application/json")
    deep = sent.body["list"][3]["deep"]  # type: ignore[index]
    assert sent.body == {
        "text": f"Q: {prompt} (terse)",
        "history": [{"role": "user", "content": prompt}],
        "options": {"temperature": 0.5, "stop": ["x"]},
        "list": [prompt, 1, None, {"deep": deep}],
        "kept": None,
    }
    assert len(deep) == 32


async def test_the_steps_before_a_failure_are_told_with_it(server: ModelServer, endpoint: Make) -> None:
    provider = endpoint(body={"q": "{{ prompt }}"}, answer="/out", steps="/trace")
    told = [{"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "pay"}]
    server.set_responses(ScriptedResponse(body={"trace": told}), ScriptedResponse(body={"trace": "none"}))
    assert [step.tool for step in (await failure(provider)).fault.steps] == ["pay"]
    assert (await failure(provider)).fault.steps == ()


async def test_values_in_a_url_are_encoded_and_cannot_leave_its_path(server: ModelServer, endpoint: Make) -> None:
    provider = endpoint("/t/{{ session }}/run?q={{ prompt }}&v=1", method="GET", answer="/out", session="/s")
    server.set_responses(ScriptedResponse(body={"out": "A", "s": "../b?c#d %2e"}))
    first = await ask(provider, InvokeRequest(question="a?b&c=d é", turn=turn(1)))
    assert first.continuation is not None
    await ask(provider, InvokeRequest(messages=talk("a", "A", "b"), turn=turn(2, first.continuation.state)))
    assert [request.path for request in server.requests] == [
        "/t//run?q=a?b%26c%3Dd%20%C3%A9&v=1",
        "/t/..%2Fb%3Fc%23d%20%252e/run?q=b&v=1",
    ]
    assert all(request.raw == b"" for request in server.requests)
    dots = await failure(provider, InvokeRequest(messages=talk("a", "A", "b"), turn=turn(2, '".."')))
    assert isinstance(dots.fault, BadRequest)
    assert dots.billing is Billing.UNBILLED
    assert len(server.requests) == 2


async def test_credentials_come_from_the_environment_and_cookies_and_redirects_are_not_followed(
    server: ModelServer, endpoint: Make
) -> None:
    provider = endpoint(**ASK, headers={"Authorization": "Bearer ${{ BOT_KEY }}", "User-Agent": "a"})
    server.set_responses(
        ScriptedResponse(body={"out": "A"}, headers={"set-cookie": "c=1"}),
        ScriptedResponse(status=302, headers={"location": "/elsewhere"}),
    )
    await ask(provider)
    redirected = await failure(provider)
    assert (redirected.billing, redirected.retryable) == (Billing.BILLED, False)
    assert [request.path for request in server.requests] == ["/ask", "/ask"]
    assert server.requests[1].headers["authorization"] == f"Bearer {KEY}"
    assert server.requests[1].headers["user-agent"] == "a"
    assert "cookie" not in server.requests[1].headers


async def test_usage_steps_and_session_are_found_by_their_pointers(server: ModelServer, endpoint: Make) -> None:
    provider = endpoint(
        body={"q": "{{ prompt }}", "thread": "{{ session }}"},
        answer="/a~1b/-1/~0text",
        usage={"input": "/u/0", "output": "/u/1"},
        steps="/steps",
        session="/thread",
    )
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "tides"}'}}
    steps = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12:40"},
        {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 3, "other": 1},
    ]
    thread = {"id": 4, "at": ["x"]}
    whole = {"a/b": [{}, {"~text": "A"}], "u": [3, 4], "steps": steps, "thread": thread}
    server.set_responses(ScriptedResponse(body=whole))
    answer = await ask(provider, InvokeRequest(question="q", turn=turn(1)))
    assert answer.text == "A"
    assert answer.token_usage is not None
    assert (answer.token_usage.input, answer.token_usage.output) == (3, 4)
    said, ran, asked = answer.steps
    assert said.messages is not None
    assert [part["type"] for part in said.messages[0]["parts"]] == ["text", "tool_call"]
    assert (ran.operation, ran.tool, ran.arguments, ran.result) == ("execute_tool", "search", {"q": "tides"}, "12:40")
    assert (asked.operation, asked.input_tokens) == ("chat", 3)
    assert answer.continuation is not None
    await ask(provider, InvokeRequest(messages=talk("q", "A", "r"), turn=turn(2, answer.continuation.state)))
    assert server.requests[1].body == {"q": "r", "thread": thread}


async def test_a_session_that_is_said_once_is_kept(server: ModelServer, endpoint: Make) -> None:
    provider = endpoint(body={"q": "{{ prompt }}", "s": "{{ session }}"}, answer="/out", session="/s")
    server.set_responses(ScriptedResponse(body={"out": "A"}))
    answer = await ask(provider, InvokeRequest(messages=talk("q", "A", "r"), turn=turn(2, '"old"')))
    assert answer.continuation == Continuation(state='"old"')
    # Outside of a conversation nobody goes on.
    assert (await ask(provider)).continuation is None


@pytest.mark.parametrize(
    ("keys", "body", "named"),
    [
        (ASK, {"other": f"{KEY} leaked"}, "answer"),
        (ASK, {"out": None}, "answer"),
        ({**ASK, "steps": "/steps"}, {"out": "A", "steps": [{"no": "step"}]}, "steps"),
        ({**ASK, "steps": "/steps"}, {"out": "A", "steps": "none"}, "steps"),
        (ASK, b"<html>It works!</html>", "JSON"),
        (ASK, b"[" * 100_000, "nested"),
        (
            {"body": {"q": "{{ prompt }}", "s": "{{ session }}"}, "answer": "/out", "session": "/s"},
            {"out": "A"},
            "session",
        ),
    ],
)
async def test_what_is_not_found_is_named_and_the_beginning_of_what_came_is_quoted(
    server: ModelServer, endpoint: Make, keys: dict[str, object], body: object, named: str
) -> None:
    provider = endpoint(**keys, headers={"X-Api-Key": "${{ BOT_KEY }}"})
    server.set_responses(ScriptedResponse(body=body))
    failed = await failure(provider, InvokeRequest(question="q", turn=turn(1)))
    assert isinstance(failed.fault, ProviderFailed)
    assert (failed.billing, failed.retryable) == (Billing.BILLED, False)
    assert f"{named}" in failed.fault.message
    written = body.decode() if isinstance(body, bytes) else json.dumps(body)
    assert written[:8] in failed.fault.message
    assert KEY not in failed.fault.message
    assert failed.fault.provider_error is not None
    assert len(failed.fault.provider_error.message or "") <= 201


async def test_a_body_without_pointers_is_the_answer(server: ModelServer, endpoint: Make) -> None:
    provider = endpoint(body={"q": "{{ prompt }}"})
    server.set_responses(ScriptedResponse(body="é, as text".encode(), headers={"content-type": "text/plain"}))
    assert (await ask(provider)).text == "é, as text"


async def test_events_are_passed_on_until_one_is_the_last(server: ModelServer, endpoint: Make) -> None:
    provider = endpoint(
        body={"q": "{{ prompt }}", "s": "{{ session }}"},
        stream={"text": "/delta", "end": "/done"},
        session="/s",
        usage={"input": "/in", "output": "/out"},
    )
    events = [{"s": "t1"}, {"delta": "one "}, {"done": False}, {"delta": "two"}, {"done": {}, "in": 1, "out": 2}]
    server.set_responses(StreamedResponse(events=[*map(event, events), event({"delta": "never"})], then="stall"))
    pieces: list[object] = []
    request = InvokeRequest(question="q", turn=turn(1))
    answer = await provider.answer(request, timeout_seconds=10, on_text=pieces.append)
    assert (answer.text, pieces) == ("one two", ["one ", "two"])
    assert answer.continuation == Continuation(state='"t1"')
    assert answer.token_usage is not None
    assert server.requests[0].headers["accept"].startswith("text/event-stream")


async def test_a_stream_may_end_with_its_body_and_have_its_answer_in_an_event(
    server: ModelServer, endpoint: Make
) -> None:
    server.set_responses(
        StreamedResponse(events=[event({"out": "half"}), event({"out": "whole"}), b"data: [DONE]\n\n"])
    )
    assert (await ask(endpoint(body={"q": "{{ prompt }}"}, stream={}, answer="/out"))).text == "whole"
    # A server that answers whole is understood too.
    server.set_responses(ScriptedResponse(body={"delta": "all"}))
    assert (await ask(endpoint(body={"q": "{{ prompt }}"}, stream={"text": "/delta"}))).text == "all"


async def test_events_that_say_nothing_are_passed_over_and_halves_are_joined(
    server: ModelServer, endpoint: Make
) -> None:
    halves = [
        b'data: {"delta": "a\\ud83c"}\r\r',
        b"data: null\r\r",
        b'data: {"delta": "\\udfc7"}\r\r',
        b"event: ping\rdata: ping\r\r",
    ]
    server.set_responses(StreamedResponse(events=halves))
    assert (await ask(endpoint(body={"q": "{{ prompt }}"}, stream={"text": "/delta"}))).text == "a🏇"


async def test_an_answer_has_a_limit(server: ModelServer, endpoint: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_api, "MAX_ANSWER_BYTES", 1000)
    server.set_responses(ScriptedResponse(body={"out": "A" * 2000}))
    failed = await failure(endpoint(**ASK))
    assert isinstance(failed.fault, ReplyTooLarge)
    assert failed.billing is Billing.BILLED


async def test_an_endpoint_that_says_nothing_for_too_long_is_given_up(server: ModelServer, endpoint: Make) -> None:
    server.set_responses(StreamedResponse(events=[event({"delta": "one"})], then="stall"))
    provider = endpoint(body={"q": "{{ prompt }}"}, stream={"text": "/delta"}, idle_seconds=0.2)
    failed = await failure(provider, seconds=30)
    assert (failed.fault.code, failed.billing) == ("timeout", Billing.UNKNOWN)


KEEPS_NOTHING = {"body": {"q": "{{ prompt }}"}, "answer": "/out"}
NAMES_SESSION = {"body": {"q": "{{ prompt }}", "s": "{{ session }}"}, "answer": "/out", "session": "/s"}
NAMES_CONVERSATION = {"body": {"q": "{{ prompt }}", "c": "{{ conversation_id }}"}, "answer": "/out"}


@pytest.mark.parametrize(
    ("keys", "request_", "field"),
    [
        (KEEPS_NOTHING, InvokeRequest(question="q", system_prompt="terse"), "systemPrompt"),
        (KEEPS_NOTHING, InvokeRequest(messages=talk("a", "A", "b")), "messages"),
        (KEEPS_NOTHING, InvokeRequest(messages=talk("a", "A", "b"), turn=turn(2)), "turn"),
        (KEEPS_NOTHING, InvokeRequest(question="q", settings=InvokeSettings(temperature=0.5)), "settings.temperature"),
        (NAMES_SESSION, InvokeRequest(messages=talk("a", "A", "b"), turn=turn(1)), "messages"),
        (NAMES_SESSION, InvokeRequest(messages=talk("a", "A", "b"), turn=turn(2)), "turn.continuation"),
        (NAMES_SESSION, InvokeRequest(messages=talk("a", "A", "b"), turn=turn(2, "{")), "turn.continuation.state"),
        (NAMES_SESSION, InvokeRequest(messages=talk("a", "A"), turn=turn(2, "1")), "messages[1].role"),
    ],
)
async def test_what_an_endpoint_cannot_be_told_is_refused_by_name_and_not_sent(
    server: ModelServer, endpoint: Make, keys: dict[str, object], request_: InvokeRequest, field: str
) -> None:
    failed = await failure(endpoint(**keys), request_)
    assert isinstance(failed.fault, BadRequest)
    assert failed.fault.message.startswith(f"{field}: ")
    assert failed.billing is Billing.UNBILLED
    assert not server.requests


async def test_a_conversation_is_found_by_its_id(server: ModelServer, endpoint: Make) -> None:
    server.set_responses(ScriptedResponse(body={"out": "A"}))
    provider = endpoint(**NAMES_CONVERSATION)
    answer = await ask(provider, InvokeRequest(messages=talk("a", "A", "b"), turn=turn(2)))
    assert server.requests[0].body == {"q": "b", "c": "talk-7"}
    assert answer.continuation is None


async def test_an_error_that_says_nothing_is_none_and_a_pointer_may_lead_into_one(
    server: ModelServer, endpoint: Make
) -> None:
    server.set_responses(ScriptedResponse(body={"out": "Fine.", "error": {"message": None}, "status": "done"}))
    assert (await ask(endpoint(**ASK))).text == "Fine."
    server.set_responses(ScriptedResponse(body={"error": {"message": "It broke"}}))
    assert (await ask(endpoint(body=ASK["body"], answer="/error/message"))).text == "It broke"
    for said in ({"error": "It broke"}, {"status": "failed"}):
        server.set_responses(ScriptedResponse(body={"out": "par", **said}))
        assert (await failure(endpoint(**ASK))).billing is Billing.UNKNOWN
    server.set_responses(StreamedResponse(events=[event({"delta": "one"}), b"data: {broken\n\n"]))
    assert (await failure(endpoint(body=ASK["body"], stream={"text": "/delta"}))).billing is Billing.UNKNOWN


@pytest.mark.parametrize(
    ("status", "outcome", "cause"),
    [
        *((status, TryOutcome.REFUSED, None) for status in (401, 402, 407)),
        (403, TryOutcome.ANSWERED, None),  # it may be a guard's answer to what was asked
        (503, TryOutcome.FAILED, FailureCause.NOT_TAKEN),
    ],
)
async def test_a_status_says_what_the_try_was(
    server: ModelServer, endpoint: Make, status: int, outcome: TryOutcome, cause: FailureCause | None
) -> None:
    server.set_responses(ScriptedResponse(status=status, body={"detail": "no"}))
    failed = await failure(endpoint(**ASK))
    assert (failed.outcome, failed.cause) == (outcome, cause)
    assert failed.fault.provider_error is not None
    assert failed.fault.provider_error.status == status
