"""An agent of CrewAI, and a crew of it."""

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("tide")
def tide(port: str) -> str:
    """Look up when high tide is in a port."""
    return {"Ostend": "12:40", "Dover": "11:15"}.get(port, "unknown")


agent = Agent(
    role="harbour clerk",
    goal="Answer with the time alone",
    backstory="You know the tide tables.",
    tools=[tide],
    llm=LLM(model="model", provider="openai"),
)
crew = Crew(agents=[agent], tasks=[Task(description="{prompt}", expected_output="a time", agent=agent)])
