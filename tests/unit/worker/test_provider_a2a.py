"""An agent of the A2A protocol, scripted over a socket; `tests/clients/test_a2a.py` has those of its own library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from quintain.config.http_targets import HttpTarget
from quintain.contracts.agents import Continuation, Turn
from quintain.contracts.invoke import ChatMessage, InvokeRequest
from quintain.errors import BadRequest
from quintain_worker.providers.agents import a2a
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import Billing, Provider, ProviderAnswer, ProviderContext, ProviderFailure
from support.model_server import ModelServer, ReceivedRequest, ScriptedResponse

FIRST = Turn(conversation_id="c", number=1)
STATE = '{"contextId": "ctx", "taskId": "t1"}'
NEXT = Turn(conversation_id="c", number=2, continuation=Continuation(state=STATE))
TALK = [ChatMessage(role=role, content=text) for role, text in (("user", "a"), ("assistant", "A"), ("user", "b"))]


def task(state: str, said: str | None = None, **fields: object) -> dict[str, object]:
    message = {"messageId": "m9", "role": "ROLE_AGENT", "parts": [{"text": said}]}
    status = {"state": state, **({} if said is None else {"message": message})}
    return {"id": "t1", "contextId": "ctx", "status": status, **fields}


def result(value: object) -> ScriptedResponse:
    return ScriptedResponse(body={"jsonrpc": "2.0", "id": 1, "result": value})


def error(code: int) -> ScriptedResponse:
    return ScriptedResponse(body={"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "It says no"}})


def methods(server: ModelServer) -> list[str]:
    return [str(request.body["method"]) for request in server.requests]


@pytest.fixture
async def agent(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Provider]:
    monkeypatch.setattr(a2a, "FIRST_WAIT_SECONDS", 0.01)
    target = HttpTarget(provider="http", preset="a2a", url=f"{server.url}/rpc?tenant=1")
    provider = build_provider("bot", target, ProviderContext(Path.cwd(), {}))
    yield provider
    await provider.close()


async def ask(agent: Provider, turn: Turn | None = None, seconds: float = 10) -> ProviderAnswer:
    request = InvokeRequest(messages=TALK, turn=turn) if turn is NEXT else InvokeRequest(question="q", turn=turn)
    return await agent.answer(request, timeout_seconds=seconds)


async def failure(agent: Provider, turn: Turn | None = None, seconds: float = 10) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        await ask(agent, turn, seconds)
    return caught.value


async def test_a_task_is_asked_for_until_it_ends_whatever_fails_meanwhile(server: ModelServer, agent: Provider) -> None:
    history = [
        {"messageId": "m1", "role": "ROLE_AGENT", "parts": [{"text": "I look."}, {"data": {"at": 1}}]},
        {"messageId": "m2", "role": "ROLE_USER", "parts": [{"text": "q"}]},
    ]
    file = {"raw": "AAAA", "filename": "tides.pdf"}
    artifacts = [{"artifactId": "1", "parts": [{"text": "High "}, {"text": "tide"}]}, {"parts": [file]}]
    server.set_responses(
        result({"task": task("TASK_STATE_SUBMITTED")}),
        result(task("TASK_STATE_WORKING")),
        ScriptedResponse(body=b"", close_after=0),
        ScriptedResponse(status=503),
        ScriptedResponse(status=429),
        result(task("TASK_STATE_COMPLETED", artifacts=artifacts, history=history)),
    )
    answer = await ask(agent, FIRST)
    assert answer.text == "High tide\n\n[file tides.pdf]"
    assert answer.continuation == Continuation(state='{"contextId": "ctx"}')
    assert [step.operation for step in answer.steps] == ["invoke_agent"]
    assert methods(server) == ["SendMessage", *["GetTask"] * 5]
    sent = server.requests[0]
    assert (sent.path, sent.headers["a2a-version"]) == ("/rpc?tenant=1", "1.0")
    assert server.requests[1].body["params"] == {"id": "t1"}


@pytest.mark.parametrize("nothing", [None, {}, "", {"code": None, "message": None}])
async def test_an_error_that_says_nothing_is_none(server: ModelServer, agent: Provider, nothing: object) -> None:
    body = {"result": task("TASK_STATE_COMPLETED", "Fine."), "error": nothing}
    server.set_responses(ScriptedResponse(body=body))
    assert (await ask(agent)).text == "Fine."


async def test_an_agent_may_answer_at_once(server: ModelServer, agent: Provider) -> None:
    message = {"messageId": "m1", "role": "ROLE_AGENT", "contextId": "ctx", "parts": [{"text": "Hello"}]}
    server.set_responses(result({"message": message}))
    answer = await ask(agent, FIRST)
    assert (answer.text, answer.continuation) == ("Hello", Continuation(state='{"contextId": "ctx"}'))


async def test_a_question_of_the_agent_is_answered_by_the_next_turn(server: ModelServer, agent: Provider) -> None:
    server.set_responses(result({"task": task("TASK_STATE_INPUT_REQUIRED", "Which?")}))
    answer = await ask(agent, FIRST)
    assert answer.text == "Which?"
    assert answer.continuation is not None
    await ask(agent, NEXT)
    params = server.requests[1].body["params"]
    assert isinstance(params, dict)
    assert (params["message"]["contextId"], params["message"]["taskId"]) == ("ctx", "t1")
    assert params["message"]["parts"] == [{"text": "b"}]
    # Outside of a conversation nobody answers it.
    failed = await failure(agent)
    assert (failed.fault.code, failed.billing) == ("provider_error", Billing.BILLED)
    assert "Which?" in failed.fault.message


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("TASK_STATE_FAILED", "provider_error"),
        ("TASK_STATE_CANCELED", "provider_error"),
        ("TASK_STATE_AUTH_REQUIRED", "provider_error"),
        ("TASK_STATE_REJECTED", "rejected"),
        ("TASK_STATE_OF_TOMORROW", "provider_error"),
    ],
)
async def test_another_end_is_an_error_with_what_the_agent_said(
    server: ModelServer, agent: Provider, state: str, code: str
) -> None:
    server.set_responses(result({"task": task(state, "I may not")}))
    failed = await failure(agent)
    assert (failed.fault.code, failed.billing, failed.retryable) == (code, Billing.BILLED, False)
    assert "I may not" in failed.fault.message


@pytest.mark.parametrize("code", [-32601, -32600, -32009])
async def test_an_agent_of_version_0_3_is_asked_in_its_words(server: ModelServer, agent: Provider, code: int) -> None:
    def respond(request: ReceivedRequest) -> ScriptedResponse:
        if request.body["method"] not in {"message/send", "tasks/get"}:
            return error(code)
        if request.body["method"] == "message/send":
            return result({"kind": "task", **task("working")})
        parts = [{"kind": "text", "text": "Fine"}, {"kind": "file", "file": {"name": "a.txt", "bytes": "AA"}}]
        return result({"kind": "task", **task("completed", artifacts=[{"parts": parts}])})

    server.response_for = respond
    assert (await ask(agent)).text == "Fine[file a.txt]"
    assert (await ask(agent)).text == "Fine[file a.txt]"
    assert methods(server) == ["SendMessage", *["message/send", "tasks/get"] * 2]
    params = server.requests[1].body["params"]
    assert isinstance(params, dict)
    assert params["message"]["kind"] == "message"
    assert params["message"]["parts"] == [{"kind": "text", "text": "q"}]
    assert "a2a-version" not in server.requests[1].headers


@pytest.mark.parametrize(
    ("response", "turn", "code", "billing"),
    [
        (error(-32001), NEXT, "conversation_lost", Billing.UNBILLED),
        (error(-32602), None, "rejected", Billing.BILLED),
        (error(-32601), None, "rejected", Billing.BILLED),
        (error(-32603), None, "provider_error", Billing.BILLED),
        (ScriptedResponse(status=500), None, "provider_error", Billing.BILLED),
        (ScriptedResponse(status=429), None, "throttled", Billing.UNBILLED),
        (result({"task": task("TASK_STATE_COMPLETED")}), None, "provider_error", Billing.BILLED),
        (result({"neither": 1}), None, "provider_error", Billing.BILLED),
        (
            ScriptedResponse(body={"result": task("TASK_STATE_COMPLETED", "Fine."), "error": "It broke"}),
            None,
            "provider_error",
            Billing.BILLED,
        ),
        (ScriptedResponse(body=b"no JSON"), None, "provider_error", Billing.BILLED),
    ],
)
async def test_what_goes_wrong_with_a_message(
    server: ModelServer, agent: Provider, response: ScriptedResponse, turn: Turn | None, code: str, billing: Billing
) -> None:
    server.set_responses(response)
    failed = await failure(agent, turn)
    assert (failed.fault.code, failed.billing) == (code, billing)


async def test_a_task_that_does_not_end_is_cancelled_and_in_doubt(server: ModelServer, agent: Provider) -> None:
    server.set_responses(result({"task": task("TASK_STATE_WORKING")}))
    failed = await failure(agent, seconds=0.3)
    assert (failed.fault.code, failed.billing) == ("timeout", Billing.UNKNOWN)
    assert methods(server)[-1] == "CancelTask"


async def test_a_cancelled_call_cancels_its_task(server: ModelServer, agent: Provider) -> None:
    server.set_responses(result({"task": task("TASK_STATE_WORKING")}))
    call = asyncio.create_task(ask(agent))
    await server.arrived.wait()
    while "GetTask" not in methods(server):
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert methods(server)[-1] == "CancelTask"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"question": "q", "system_prompt": "terse"}, "systemPrompt"),
        ({"messages": TALK}, "messages"),
        ({"messages": TALK, "turn": Turn(conversation_id="c", number=2)}, "turn.continuation"),
        (
            {"messages": TALK, "turn": NEXT.with_fields(continuation=Continuation(state="[1]"))},
            "turn.continuation.state",
        ),
    ],
)
async def test_what_an_agent_cannot_be_told_is_refused_by_name(
    server: ModelServer, agent: Provider, fields: Mapping[str, object], named: str
) -> None:
    with pytest.raises(ProviderFailure) as caught:
        await agent.answer(InvokeRequest.model_validate(fields), timeout_seconds=10)
    assert isinstance(caught.value.fault, BadRequest)
    assert caught.value.fault.message.startswith(f"{named}: ")
    assert caught.value.billing is Billing.UNBILLED
    assert not server.requests
