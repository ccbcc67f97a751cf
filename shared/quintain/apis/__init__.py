"""The JSON of OpenAI's and Anthropic's APIs: how it is read, checked, put together from a stream, and translated."""
