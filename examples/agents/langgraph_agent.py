"""A LangGraph graph, as LangChain makes it of a model and tools."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def tide(port: str) -> str:
    """Look up when high tide is in a port."""
    return {"Ostend": "12:40", "Dover": "11:15"}.get(port, "unknown")


agent = create_agent(ChatOpenAI(model="model"), [tide], system_prompt="Answer with the time alone.")
