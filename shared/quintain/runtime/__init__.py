"""Process-wide helpers: garbage collection, HTTP server start, random ids, batching."""
