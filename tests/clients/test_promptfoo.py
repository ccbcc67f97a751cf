"""promptfoo: ``quintain snippet promptfoo``, with an assertion on the answer and one on its cost."""

from __future__ import annotations

import json

import pytest

from clients.evaluator import ToolEvaluator, assert_sent
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
#: The target's price for 21 tokens in and 9 out is 0.039.
TESTS = """
prompts: ["What is {{it}}?"]
tests:
  - vars: {it: the capital}
    assert:
      - {type: contains, value: Paris}
      - {type: cost, threshold: 0.04}
  - vars: {it: too dear}
    assert: [{type: cost, threshold: 0.01}]
"""


async def test_every_parameter_arrives_and_the_cost_is_asserted(evaluator: ToolEvaluator, tool: ClientTool) -> None:
    printed = await evaluator.print_snippet("promptfoo")
    assert printed.file == "promptfooconfig.yaml"
    settings = "".join(f"\n      {name}: {json.dumps(value)}" for name, value in PARAMETERS.items())
    evaluator.write(printed.file, f"{printed.text}{settings}\n{TESTS}")
    command = printed.command.replace("npx promptfoo@latest", "promptfoo")
    script = f"{printed.exports}\n{command} --no-cache --output out.json || true"
    ended = await evaluator.run(
        script,
        tool,
        PROMPTFOO_DISABLE_TELEMETRY="1",
        PROMPTFOO_DISABLE_UPDATE="1",
        PROMPTFOO_DISABLE_REMOTE_GENERATION="1",
    )
    results = json.loads((evaluator.folder / "out.json").read_text())["results"]["results"]
    for body in evaluator.bodies:
        assert_sent(body, PARAMETERS)
    outcomes = {result["vars"]["it"]: result for result in results}
    assert outcomes["the capital"]["response"]["output"] == "Paris", ended
    assert outcomes["the capital"]["cost"] == pytest.approx(0.039)
    assert outcomes["the capital"]["success"]
    assert not outcomes["too dear"]["success"]
