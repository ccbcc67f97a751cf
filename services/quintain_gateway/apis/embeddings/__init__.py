"""The endpoint of OpenAI's embeddings API."""
