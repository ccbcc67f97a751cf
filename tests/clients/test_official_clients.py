"""OpenAI's and Anthropic's clients, told by ``quintain snippet``: in Python the printed program, in Node all calls.

Those in Python are installed for the other tests too, and run in `make test`; tests/conformance/http has their calls.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from clients.tool_session import PROGRAMS, ToolSession, assert_sent
from quintain.contracts.credentials import SessionToken
from quintain.settings import environment
from support.client_tools import ClientTool, cache_folder

pytestmark = pytest.mark.timeout(700)

FUNCTION = {"name": "clock", "description": "the time", "parameters": {"type": "object", "properties": {}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "it", "schema": {"type": "object"}}}

#: By client: the target, and what it is told to send.
PARAMETERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "openai": (
        "judge",
        {
            "temperature": 0.3,
            "top_p": 0.2,
            "max_tokens": 50,
            "seed": 7,
            "stop": ["END"],
            "frequency_penalty": 0.5,
            "presence_penalty": 0.25,
            "logit_bias": {"50256": -100},
            "logprobs": True,
            "top_logprobs": 2,
            "reasoning_effort": "high",
            "verbosity": "low",
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "response_format": SCHEMA,
        },
    ),
    "anthropic": (
        "claude",
        {
            "temperature": 0.3,
            "top_p": 0.2,
            "top_k": 5,
            "max_tokens": 2048,
            "stop_sequences": ["END"],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "tools": [{"name": "clock", "description": "the time", "input_schema": FUNCTION["parameters"]}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        },
    ),
}

#: By the word of the question: the exception of the clients, the status and the code.
FAILURES = {
    "OVERFLOW": ("BadRequestError", 400, "context_length_exceeded"),
    "BROKEN": ("InternalServerError", 502, "provider_error"),
    "QUOTA": ("PaymentRequiredError", 402, "insufficient_quota"),
    "THROTTLE": ("RateLimitError", 429, "rate_limit_exceeded"),
}


def case(name: str, model: str = "judge", question: str = "Which way?", **more: Any) -> dict[str, Any]:
    return {"name": name, "model": model, "question": question, "parameters": {}, "seconds": None, **more}


def throttled(name: str, seconds: int, **more: Any) -> dict[str, Any]:
    """A call that is told to slow down until its deadline, so many seconds after its client sends it.

    Its target has a quota that no other call waits for.
    """
    return case(name, "limited", "THROTTLE", seconds=seconds, **more)


REFUSALS = (
    *(case(word, question=word) for word in FAILURES if word != "THROTTLE"),
    throttled("THROTTLE", 20),
    case("unknown", "nope"),
    case("forbidden", "forbidden"),
    case("unauthorized", token=SessionToken.mint().text),
    case("bad value", parameters={"tools": [{"type": "web_search", "name": "web_search"}]}),
    case("answered"),
    case("streamed", parameters={"stream": True}),
    case("broken stream", question="BREAKS", parameters={"stream": True}),
)
#: Whole answers and streams that fail while the status is held, and after: a stream has had one since 15 s.
LATE = tuple(
    case(f"{word} {seconds} {kind}", question=f"{word} after {seconds} s", parameters={"stream": kind == "stream"})
    for word in FAILURES
    for seconds in (1, 40)
    for kind in ("whole", "stream")
    if word != "THROTTLE"
)
LATE_THROTTLED = tuple(
    throttled(f"THROTTLE {seconds} {kind}", seconds, parameters={"stream": kind == "stream"})
    for seconds in (10, 40)
    for kind in ("whole", "stream")
)


async def calls(session: ToolSession, client: str, tool: ClientTool, cases: Any) -> dict[str, Any]:
    """Make these calls with a client that knows only the variables of the snippet."""
    printed = await session.print_snippet(client)
    # Node looks for packages beside the script.
    program = shutil.copy(PROGRAMS / f"{client}_calls.mjs", session.folder)
    (session.folder / "node_modules").symlink_to(tool.folder(cache_folder(environment())) / tool.modules)
    command = shlex.join(["node", str(program), json.dumps(list(cases))])
    ended = await session.run(f"{printed.exports}\n{command}", tool)
    assert ended.code == 0, ended
    outcomes: dict[str, Any] = json.loads(ended.stdout)
    return outcomes


def asked(session: ToolSession) -> list[str]:
    """What the model was asked; what it is too busy for is asked again while there is time."""
    questions = [str(body["messages"][-1]["content"]) for body in session.bodies]
    assert questions.count("THROTTLE") > 1
    return [question for question in questions if question != "THROTTLE"]


in_node = pytest.mark.parametrize(
    "client",
    [
        pytest.param("openai", marks=pytest.mark.tool("openai-node")),
        pytest.param("anthropic", marks=pytest.mark.tool("anthropic-node")),
    ],
)


@in_node
async def test_in_node_parameters_arrive_and_failures_are_typed(
    session: ToolSession, tool: ClientTool, client: str
) -> None:
    """No answer is asked for twice."""
    target, parameters = PARAMETERS[client]
    everything = case("all", target, "Everything?", parameters=parameters)
    outcomes = await calls(session, client, tool, [everything, *REFUSALS])
    assert outcomes["all"] == outcomes["answered"] == outcomes["streamed"] == {"text": "Paris"}
    (body,) = (body for body in session.bodies if "Everything?" in json.dumps(body["messages"]))
    assert_sent(body, parameters)
    for word in FAILURES:
        assert_typed(outcomes[word], word)
    assert outcomes["unknown"] == {"error": "NotFoundError", "status": 404, "code": "model_not_found"}
    assert outcomes["forbidden"] == {"error": "PermissionDeniedError", "status": 403, "code": "forbidden_target"}
    assert (outcomes["unauthorized"]["error"], outcomes["unauthorized"]["status"]) == ("AuthenticationError", 401)
    assert (outcomes["bad value"]["error"], outcomes["bad value"]["status"]) == ("BadRequestError", 400)
    assert outcomes["broken stream"]["error"] in {"APIError", "APIStatusError"}
    assert len(asked(session)) == len(FAILURES) + 3, "no client and no worker repeats what cannot help"


@in_node
async def test_in_node_late_failures_are_typed(session: ToolSession, tool: ClientTool, client: str) -> None:
    outcomes = await calls(session, client, tool, [*LATE, *LATE_THROTTLED])
    for late in (*LATE, *LATE_THROTTLED):
        word, seconds, kind = late["name"].split()
        outcome = outcomes[late["name"]]
        if kind == "stream" and seconds == "40":
            assert outcome["error"] in {"APIError", "APIStatusError"}, outcomes
            assert outcome["code"] == FAILURES[word][2], outcomes
        else:
            assert_typed(outcome, word)
    assert len(asked(session)) == len(LATE), "no client and no worker repeats what cannot help"


def assert_typed(outcome: Mapping[str, object], word: str) -> None:
    """The outcome of this failure is the client's own exception, with its status and code."""
    exception, status, code = FAILURES[word]
    # A client without a class for a status raises that of all.
    names = {exception, "APIError", "APIStatusError"} if status == 402 else {exception}
    assert outcome["error"] in names, (word, outcome)
    assert (outcome["status"], outcome["code"]) == (status, code), (word, outcome)


@pytest.mark.parametrize("client", ["openai", "anthropic"])
async def test_the_printed_program_is_answered(session: ToolSession, client: str) -> None:
    printed = await session.print_snippet(client)
    assert printed.file == "Python"
    session.write("printed.py", f"import {client}\n{printed.text}\n")
    ended = await session.run(f"{printed.exports}\n{shlex.quote(sys.executable)} printed.py")
    assert ended.code == 0, ended
    assert [body["messages"][-1]["content"] for body in session.bodies] == ["Hello?"]
