"""DeepEval: ``quintain snippet deepeval``, with a metric whose judge is the target."""

from __future__ import annotations

import pytest

from clients.tool_session import ToolSession
from support.client_tools import ClientTool

pytestmark = [pytest.mark.tool("deepeval"), pytest.mark.timeout(2000)]

TEST = """
from deepeval import assert_test
from deepeval.metrics import GEval
from deepeval.test_case import LLMTestCase, SingleTurnParams

def test_capital():
    metric = GEval(
        name="correct", evaluation_steps=["Is it the capital?"], evaluation_params=[SingleTurnParams.ACTUAL_OUTPUT],
        async_mode=False,
    )
    assert_test(LLMTestCase(input="Which city?", actual_output="Paris"), [metric], run_async=False)
"""


async def test_a_metric_is_judged_by_the_target(session: ToolSession, tool: ClientTool) -> None:
    printed = await session.print_snippet("deepeval")
    session.write("test_it.py", TEST)
    ended = await session.run(
        f"{printed.exports}\n{printed.command}",
        tool,
        DEEPEVAL_TELEMETRY_OPT_OUT="1",
        LOCAL_MODEL_TEMPERATURE="0.3",
        TEMPERATURE="0.3",
        CONFIDENT_OPEN_BROWSER="0",
    )
    assert ended.code == 0, ended
    assert "1 passed" in ended.stdout
    assert len(session.bodies) == 1
    assert session.bodies[0]["temperature"] == 0.3
