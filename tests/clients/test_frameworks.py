"""Frameworks over OpenAI's and Anthropic's clients: a default program of each, with a base URL and a key only.

What each sends reaches the model as it was sent, and what the model answers reaches the program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from clients.tool_session import ToolSession, answer_scripted
from quintain.settings import environment
from support.client_tools import TOOLS, ClientTool, cache_folder
from support.model_server import ReceivedRequest, ScriptedResponse
from support.model_wires import chat_calls, responses_answer

PROGRAMS: Mapping[str, str] = {
    "litellm": """
import litellm
answer = litellm.completion(model="openai/judge", messages=[{"role": "user", "content": "Which city?"}], seed=7)
print(answer.choices[0].message.content)
whole = litellm.completion(model="anthropic/claude", messages=[{"role": "user", "content": "Which city?"}])
print(whole.choices[0].message.content)
""",
    "langchain-openai": """
from langchain_openai import ChatOpenAI
model = ChatOpenAI(model="judge", seed=7)
print(model.invoke("Which city?").content)
print("".join(str(piece.content) for piece in model.stream("Which city?")))
""",
    "pydantic-ai": """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
agent = Agent(OpenAIChatModel("judge"), model_settings={"seed": 7})
print(agent.run_sync("Which city?").output)
""",
    "instructor": """
import instructor, openai, pydantic
class Answer(pydantic.BaseModel):
    city: str
client = instructor.from_openai(openai.OpenAI())
answer = client.chat.completions.create(
    model="judge", seed=7, response_model=Answer, messages=[{"role": "user", "content": "Which city?"}]
)
print(answer.city)
""",
    "openai-agents": """
from agents import Agent, Runner, set_tracing_disabled
set_tracing_disabled(True)
print(Runner.run_sync(Agent(name="guide", model="judge"), "Which city?").final_output)
""",
}

#: How often each program prints the answer.
ANSWERS = {"litellm": 2, "langchain-openai": 2}


def answer_frameworks(request: ReceivedRequest) -> object:
    """The model: it calls the tool that a program demands, and answers the Responses API too."""
    body = request.body
    if request.path.endswith("/responses"):
        return ScriptedResponse(body=responses_answer("Paris"))
    tools = body.get("tools")
    if isinstance(tools, list) and tools:
        return ScriptedResponse(
            body=chat_calls([("call_1", tools[0]["function"]["name"], json.dumps({"city": "Paris"}))])
        )
    return answer_scripted(request)


@pytest.mark.timeout(2000)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.tool(name)) for name in PROGRAMS])
async def test_a_default_program_is_answered(session: ToolSession, tool: ClientTool, name: str) -> None:
    session.provider.response_for = answer_frameworks
    session.write("program.py", PROGRAMS[name])
    token, url = await session.session_token(), session.fleet.gateway_url
    python = TOOLS[name].programs(cache_folder(environment())) / "python"
    ended = await session.run(
        f"{python} program.py",
        tool,
        OPENAI_BASE_URL=f"{url}/v1",
        OPENAI_API_KEY=token,
        ANTHROPIC_BASE_URL=url,
        ANTHROPIC_API_BASE=url,
        ANTHROPIC_API_KEY=token,
    )
    assert ended.code == 0, ended
    assert ended.stdout.split().count("Paris") == ANSWERS.get(name, 1), ended
    if name != "openai-agents":
        assert session.bodies[0]["seed"] == 7
