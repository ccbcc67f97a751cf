"""An agent of Inspect."""

from inspect_ai.agent import react
from inspect_ai.tool import Tool, tool


@tool
def tide() -> Tool:
    async def execute(port: str) -> str:
        """Look up when high tide is in a port.

        Args:
            port: The name of the port.
        """
        return {"Ostend": "12:40", "Dover": "11:15"}.get(port, "unknown")

    return execute


agent = react(prompt="Answer with the time alone.", tools=[tide()], model="openai/model", submit=False)
