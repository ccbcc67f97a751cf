"""What is said: frozen pydantic models, camelCase on the wire, with no I/O. One module per conversation."""
