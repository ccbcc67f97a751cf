"""Stores, reads and counts result rows."""
