"""The endpoint of OpenAI's chat completions API."""
