"""Process-wide helpers: batches and time limits, the HTTP client, start of HTTP servers, text files and tables, garbage collection."""
