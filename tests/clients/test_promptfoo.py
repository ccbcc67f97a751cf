"""promptfoo: ``quintain snippet promptfoo``, with an assertion on the answer."""

from __future__ import annotations

import json

import pytest

from clients.tool_session import PARAMETERS as SENT
from clients.tool_session import ToolSession, assert_sent
from support.client_tools import ClientTool

pytestmark = [pytest.mark.tool("promptfoo"), pytest.mark.timeout(2000)]

PARAMETERS = {**SENT, "max_tokens": 50}
ENVIRONMENT = {
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "PROMPTFOO_DISABLE_UPDATE": "1",
    "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
}


async def test_every_parameter_arrives(session: ToolSession, tool: ClientTool) -> None:
    printed = await session.print_snippet("promptfoo")
    assert printed.file == "promptfooconfig.yaml"
    settings = "".join(f"\n      {name}: {json.dumps(value)}" for name, value in PARAMETERS.items())
    tests = 'prompts: ["What is it?"]\ntests: [{assert: [{type: contains, value: Paris}]}]\n'
    session.write(printed.file, f"{printed.text}{settings}\n{tests}")
    command = printed.command.replace("npx promptfoo@latest", "promptfoo")
    # It ends with 100 where an assertion fails.
    ended = await session.run(f"{printed.exports}\n{command} --no-cache --output out.json || true", tool, **ENVIRONMENT)
    assert (session.folder / "out.json").exists(), ended
    (result,) = json.loads((session.folder / "out.json").read_text())["results"]["results"]
    assert (result["response"]["output"], result["success"]) == ("Paris", True), result
    (body,) = session.bodies
    assert_sent(body, PARAMETERS)
