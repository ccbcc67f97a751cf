"""Starts services, and inspects and administers running ones."""
