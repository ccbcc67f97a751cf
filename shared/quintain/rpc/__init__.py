"""Request and reply over the bus: the client with its reply queue, and helpers for servers."""
