"""Stores result rows and counts them."""
