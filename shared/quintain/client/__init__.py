"""The SDK: `Client` for one session (with its token) and `Admin` for administration (with the admin token)."""
