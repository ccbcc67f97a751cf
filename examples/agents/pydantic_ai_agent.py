"""An agent of pydantic-ai."""

from pydantic_ai import Agent

agent = Agent("openai-chat:model", instructions="Answer with the time alone.")


@agent.tool_plain
def tide(port: str) -> str:
    """Look up when high tide is in a port."""
    return {"Ostend": "12:40", "Dover": "11:15"}.get(port, "unknown")
