"""Model providers: OpenAI's and Anthropic's APIs, and the servers that speak them, over HTTP."""
