"""The endpoint of OpenAI's Responses API."""
