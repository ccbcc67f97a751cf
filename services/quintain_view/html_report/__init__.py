"""Writes runs as one HTML file that needs neither a server nor a network."""
