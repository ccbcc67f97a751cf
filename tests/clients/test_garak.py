"""garak: ``quintain snippet garak``, with a probe of one prompt."""

from __future__ import annotations

import json

import pytest

from clients.tool_session import PARAMETERS, ToolSession, assert_sent
from support.client_tools import ClientTool

pytestmark = [pytest.mark.tool("garak"), pytest.mark.timeout(2000)]


async def test_a_probe_is_answered_with_every_parameter(session: ToolSession, tool: ClientTool) -> None:
    printed = await session.print_snippet("garak")
    assert printed.file == "generator.json"
    options = json.loads(printed.text)
    sent = {name: value for name, value in PARAMETERS.items() if name != "seed"}
    options["openai"]["OpenAICompatible"] |= {**sent, "max_tokens": 50}
    session.write(printed.file, json.dumps(options))
    command = f"{printed.exports}\n{printed.command} --probes test.Test --generations 2 --report_prefix garak"
    ended = await session.run(command, tool, seconds=600)
    assert ended.code == 0, ended
    assert session.bodies
    for body in session.bodies:
        assert_sent(body, sent)
        assert 50 in (body.get("max_tokens"), body.get("max_completion_tokens"))
