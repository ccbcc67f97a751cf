"""The endpoint of OpenAI's completions API."""
