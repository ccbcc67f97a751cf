"""The endpoint of Anthropic's messages API."""
