"""Processing of one delivery: parse, admit, call the provider with retries, stream, settle, reply, acknowledge."""
