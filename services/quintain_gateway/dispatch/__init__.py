"""Makes the calls of a request and writes their results as a response, whole or streamed."""
