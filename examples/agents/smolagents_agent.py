"""An agent of smolagents."""

import os

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def tide(port: str) -> str:
    """Look up when high tide is in a port.

    Args:
        port: The name of the port.
    """
    return {"Ostend": "12:40", "Dover": "11:15"}.get(port, "unknown")


model = OpenAIModel("model", api_base=os.environ.get("OPENAI_BASE_URL"))
agent = ToolCallingAgent(tools=[tide], model=model, instructions="Answer with the time alone.")
