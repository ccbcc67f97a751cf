"""Process-wide helpers: batches, time limits, the HTTP client and servers, text files, garbage collection."""
