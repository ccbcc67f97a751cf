"""Process-wide helpers: batches and time limits, the HTTP client, start of HTTP servers, garbage collection."""
