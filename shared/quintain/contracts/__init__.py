"""The messages on the wire: frozen pydantic models, camelCase in JSON, no I/O. One module per group of operations."""
