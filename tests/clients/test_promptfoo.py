"""promptfoo: ``quintain snippet promptfoo``, with an assertion on the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clients.tool_session import ToolSession, assert_sent
from support.client_tools import ClientTool

pytestmark = [pytest.mark.tool("promptfoo"), pytest.mark.timeout(2000)]

PARAMETERS = {
    "temperature": 0.3,
    "top_p": 0.2,
    "max_tokens": 50,
    "seed": 7,
    "stop": ["END"],
    "frequency_penalty": 0.5,
    "presence_penalty": 0.25,
}
ENVIRONMENT = {
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "PROMPTFOO_DISABLE_UPDATE": "1",
    "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
}


async def evaluate(session: ToolSession, tool: ClientTool, assertion: str) -> dict[str, Any]:
    """Run promptfoo with the printed provider, all parameters and one assertion; return the case's result."""
    printed = await session.print_snippet("promptfoo")
    assert printed.file == "promptfooconfig.yaml"
    settings = "".join(f"\n      {name}: {json.dumps(value)}" for name, value in PARAMETERS.items())
    tests = f'prompts: ["What is it?"]\ntests: [{{assert: [{assertion}]}}]\n'
    session.write(printed.file, f"{printed.text}{settings}\n{tests}")
    command = printed.command.replace("npx promptfoo@latest", "promptfoo")
    # It ends with 100 where an assertion fails.
    ended = await session.run(f"{printed.exports}\n{command} --no-cache --output out.json || true", tool, **ENVIRONMENT)
    assert (session.folder / "out.json").exists(), ended
    (result,) = json.loads((session.folder / "out.json").read_text())["results"]["results"]
    return dict(result)


async def test_every_parameter_arrives(session: ToolSession, tool: ClientTool) -> None:
    result = await evaluate(session, tool, "{type: contains, value: Paris}")
    assert (result["response"]["output"], result["success"]) == ("Paris", True), result
    (body,) = session.bodies
    assert_sent(body, PARAMETERS)
