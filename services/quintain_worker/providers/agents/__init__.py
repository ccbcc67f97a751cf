"""Providers of agents: programs, frameworks, HTTP endpoints and hosted targets."""
