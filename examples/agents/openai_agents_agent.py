"""An agent of OpenAI's Agents SDK."""

from agents import Agent, function_tool


@function_tool
def tide(port: str) -> str:
    """Look up when high tide is in a port."""
    return {"Ostend": "12:40", "Dover": "11:15"}.get(port, "unknown")


agent = Agent(name="clerk", model="model", tools=[tide], instructions="Answer with the time alone.")
