"""Model providers: OpenAI and Anthropic, over pydantic-ai."""
