"""Builds the gateway's ASGI application and serves it: TLS, connection limits, access log."""
