"""The example agents, each with its real framework: `quintain run` asks them, and they ask a model that is a stub.

Each runs in the environment of its framework, with the wheel of this checkout on its path.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from clients.tool_session import ToolSession
from generate.checkout import copy_tracked
from quintain import connect
from quintain.agents.recognition import SENDS_NOTHING
from quintain.config.loader import load_config
from quintain.errors import ProviderFailed
from quintain.settings import environment
from support.client_tools import TOOLS, ClientTool, cache_folder
from support.installed_wheel import REPOSITORY, build_wheel, run
from support.model_server import ReceivedRequest, ScriptedResponse, model_server
from support.model_wires import chat_answer, chat_calls, responses_answer, responses_calls
from support.process_fleet import process_fleet

EXAMPLES = REPOSITORY / "examples" / "agents"

#: Each target of the examples, by the environment that it runs in.
AGENTS = {
    "langgraph": "agent-langgraph",
    "openai-agents": "agent-openai-agents",
    "pydantic-ai": "agent-pydantic-ai",
    "crewai": "agent-crewai",
    "crew": "agent-crewai",
    "smolagents": "agent-smolagents",
    "inspect": "agent-inspect",
}


# The model: it calls the tool `tide` for the question's port, and answers the result.

_PORT, _TIME = re.compile(r"tide in (\w+)"), re.compile(r"\d\d:\d\d")


def answer_tides(request: ReceivedRequest) -> ScriptedResponse:
    """Answer a request of the chat or the Responses API."""
    body: Any = request.body
    if request.path.endswith("/responses"):
        return ScriptedResponse(body=_response(body))
    messages = body["messages"]
    if (asked := _last_user(messages)) is None:
        return ScriptedResponse(body=chat_answer("Which port?"))
    tools = [tool["function"]["name"] for tool in body.get("tools") or ()]
    # smolagents tells the model of a tool's result as a user.
    results = [text for message in messages[asked + 1 :] if _TIME.search(text := text_of(message))]
    if not results:
        port = _PORT.findall(text_of(messages[asked]))[-1]
        return ScriptedResponse(body=chat_calls([("call_1", "tide", json.dumps({"port": port}))]))
    time = _TIME.findall(results[-1])[-1]
    if "final_answer" in tools:
        return ScriptedResponse(body=chat_calls([("call_2", "final_answer", json.dumps({"answer": time}))]))
    return ScriptedResponse(body=chat_answer(time))


def text_of(message: dict[str, Any]) -> str:
    """The text of a message of the chat API."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _last_user(messages: list[dict[str, Any]]) -> int | None:
    asks = [index for index, one in enumerate(messages) if one.get("role") == "user" and _PORT.search(text_of(one))]
    return asks[-1] if asks else None


def _response(body: dict[str, Any]) -> dict[str, object]:
    items = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
    if (asked := _last_user(items)) is None:
        return responses_answer("Which port?")  # Inspect says hello to a server first
    results = [item["output"] for item in items[asked:] if item.get("type") == "function_call_output"]
    if results:
        return responses_answer(results[-1])
    port = _PORT.findall(text_of(items[asked]))[-1]
    return responses_calls([("call_1", "tide", json.dumps({"port": port}))])


@pytest.fixture(scope="module")
def quintain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Quintain alone: what it needs is in each environment."""
    folder = tmp_path_factory.mktemp("quintain")
    uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--offline", "--target", folder]
    run([*uv, build_wheel(tmp_path_factory.mktemp("wheel"))], REPOSITORY)
    return folder


async def run_example(session: ToolSession, tool: ClientTool, quintain: Path, words: str) -> list[dict[str, Any]]:
    """Run the examples' evaluation with these words, and return its rows."""
    session.provider.response_for = answer_tides
    copy_tracked(EXAMPLES, session.folder)
    python = TOOLS[tool.name].programs(cache_folder(environment())) / "python"
    ended = await session.run(
        f"{python} -m quintain_cli run eval.yaml {words}",
        tool,
        seconds=600,
        PYTHONPATH=str(quintain),
        MODEL_URL=f"{session.provider.url}/v1",
        OPENAI_API_KEY="key-of-the-model",
    )
    assert ended.code == 0, ended
    rows = (session.folder / "runs" / "eval" / "results.jsonl").read_text().splitlines()
    return [json.loads(row) for row in rows]


@pytest.mark.timeout(2000)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.tool(tool)) for name, tool in AGENTS.items()])
async def test_an_example_answers_and_tells_its_steps(
    session: ToolSession, tool: ClientTool, quintain_folder: Path, name: str
) -> None:
    rows = await run_example(session, tool, quintain_folder, f"--target {name}")
    assert sorted((row["caseId"], row["score"]) for row in rows) == [("dover", 1.0), ("ostend", 1.0)]
    for row in rows:
        steps = row["answer"]["steps"]
        assert [step["gen_ai.operation.name"] for step in steps][:3] == ["chat", "execute_tool", "chat"]
        port = {"dover": "Dover", "ostend": "Ostend"}[row["caseId"]]
        assert steps[1]["gen_ai.tool.name"] == "tide"
        assert steps[1]["gen_ai.tool.call.arguments"] == {"port": port}
        assert steps[1]["gen_ai.tool.call.result"] == row["output"] == row["case"]["expected"]
        assert steps[1]["durationMs"] >= 0
        assert row["tokenUsage"] == {"input": 42, "output": 18} | row["tokenUsage"]
    # All that it asks the model is charged to the run, and asked with the model's own key.
    summary = json.loads((session.folder / "runs" / "eval" / "run.json").read_text())
    assert summary["totals"]["calls"] == 2 + len(session.provider.requests)
    assert {request.headers["authorization"] for request in session.provider.requests} == {"Bearer key-of-the-model"}


def turn_line(number: int, *texts: str) -> str:
    """The line of a turn: the texts are the user's and the assistant's in turn."""
    messages = [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]
    turn = {"type": "turn", "conversation": "c", "number": number, "prompt": texts[-1], "messages": messages}
    return json.dumps(turn)


async def speak(
    session: ToolSession, tool: ClientTool, quintain: Path, agent: str, *lines: str
) -> list[dict[str, Any]]:
    """Give the program of an agent these lines, and return what it prints."""
    session.provider.response_for = answer_tides
    session.write("lines.jsonl", "\n".join(lines) + "\n")
    ended = await session.run(
        f"python -m quintain.agents {agent} < lines.jsonl || true",
        tool,
        seconds=600,
        PYTHONPATH=str(quintain),
        OPENAI_BASE_URL=f"{session.provider.url}/v1",
        OPENAI_API_KEY="key",
        **SENDS_NOTHING,
    )
    assert ended.code == 0, ended
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.timeout(2000)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.tool(tool)) for name, tool in AGENTS.items() if name != "crew"]
)
async def test_an_example_remembers_the_turns_of_its_conversation_only(
    session: ToolSession, tool: ClientTool, quintain_folder: Path, name: str
) -> None:
    copy_tracked(EXAMPLES, session.folder)
    ostend, dover = "When is high tide in Ostend?", "When is high tide in Dover?"
    lines = [turn_line(1, ostend), turn_line(2, ostend, "12:40", dover), '{"type": "end"}', turn_line(1, dover)]
    agent = load_config(EXAMPLES / "quintain.yaml").targets[name]
    printed = await speak(session, tool, quintain_folder, agent.agent, *lines)
    assert [line["text"] for line in printed if line["type"] == "answer"] == ["12:40", "11:15", "11:15"]
    # Inspect and others may ask the model something of their own; an answer takes two calls.
    sent = [request.raw.decode() for request in session.provider.requests if b"tide in" in request.raw]
    assert len(sent) == 6
    assert ["Ostend" in text for text in sent] == [True] * 4 + [False] * 2


GRAPHS = """
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

def ask(state):
    port = interrupt("Which port?")
    return {"messages": [AIMessage(f"{len(state['messages'])} {port}")]}

builder = StateGraph(MessagesState).add_node(ask).add_edge(START, "ask")
graph = builder.compile(checkpointer=InMemorySaver())
model = ChatOpenAI(model="model")
"""
FACTORY = """
from inspect_ai.agent import agent

@agent
def researcher():
    async def execute(state):
        return state
    return execute
"""


@pytest.mark.timeout(2000)
@pytest.mark.tool("agent-langgraph")
async def test_a_graph_that_asks_goes_on_with_the_next_turn(
    session: ToolSession, tool: ClientTool, quintain_folder: Path
) -> None:
    session.write("graphs.py", GRAPHS)
    lines = [
        turn_line(1, "tides"),
        turn_line(2, "tides", "Which port?", "Ostend"),
        turn_line(3, "a", "b", "c", "d", "e"),
    ]
    printed = await speak(session, tool, quintain_folder, "graphs:graph", *lines)
    assert [line.get("text") for line in printed] == [None, "Which port?", "1 Ostend", "Which port?"]
    for name, named in (("builder", "compile()"), ("model", "create_agent")):
        (refused,) = await speak(session, tool, quintain_folder, f"graphs:{name}", turn_line(1, "tides"))
        assert refused["type"] == "error"
        assert named in refused["message"]


@pytest.mark.timeout(2000)
@pytest.mark.tool("agent-inspect")
async def test_what_makes_an_agent_of_inspect_is_refused(
    session: ToolSession, tool: ClientTool, quintain_folder: Path
) -> None:
    session.write("factory.py", FACTORY)
    (refused,) = await speak(session, tool, quintain_folder, "factory:researcher", turn_line(1, "tides"))
    assert "call it" in refused["message"]


HOSTED = """
targets:
  model: {{provider: openai, model: served, base_url: "{url}/v1", api: [chat, responses]}}
  clerk: &clerk {{provider: target, query: answer, child_session: {{targets: [model], max_calls: 2}}}}
  thrifty: {{<<: *clerk, host: clerk, child_session: {{targets: [model], max_calls: 1}}}}
"""


@pytest.mark.timeout(2000)
@pytest.mark.tool("agent-openai-agents")
async def test_a_hosted_example_calls_its_model_within_its_lease(
    tool: ClientTool, quintain_folder: Path, broker_url: str
) -> None:
    python = tool.programs(cache_folder(environment())) / "python"
    async with model_server() as provider:
        provider.response_for = answer_tides
        config = HOSTED.format(url=provider.url)
        with process_fleet(broker_url, config, targets=["model", "clerk", "thrifty"]) as fleet:
            copy_tracked(EXAMPLES, fleet.folder)
            (fleet.folder / "quintain.yaml").write_text(config)
            await asyncio.to_thread(fleet.start_services, "metadata", "worker")
            gateway = fleet.start("serve", "gateway", "--port", "0", "--json")
            await asyncio.to_thread(gateway.wait_for_output, '"url"')
            url = json.loads(gateway.read_output().strip().splitlines()[-1])["url"]
            words = ["serve", "host", "openai_agents_agent:agent", "--name", "clerk", "--gateway", url]
            host = await asyncio.create_subprocess_exec(
                *(python, "-m", "quintain_cli", *words),
                cwd=fleet.folder,
                env={**fleet.env, "PYTHONPATH": str(quintain_folder)},
            )
            try:
                session = await asyncio.to_thread(fleet.open_session, "clerk", 10)
                async with connect(fleet.broker_url, session.token) as target:
                    said = await target.invoke("When is high tide in Ostend?", timeout=120)
                    assert said.raw_text == "12:40"
                    (ran,) = [step for step in said.steps or [] if step.tool == "tide"]
                    assert (ran.arguments, ran.result) == ({"port": "Ostend"}, "12:40")
                    # Its HTTP client logs the URL that it calls.
                    assert not re.search(r"qtn_\w+_\w{43}", repr(said.steps))
                    with pytest.raises(ProviderFailed):
                        await target.invoke("When is high tide in Dover?", target="thrifty", timeout=120)
                    assert len(provider.requests) == 3
                    assert (await target.get_info()).call_count == 5
            finally:
                host.terminate()
                await host.wait()
