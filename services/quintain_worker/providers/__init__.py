"""Providers: how a worker calls each kind of target."""
