"""Stores, reads and counts result rows, and what they cost."""
