"""The endpoints of each HTTP API of the gateway."""
