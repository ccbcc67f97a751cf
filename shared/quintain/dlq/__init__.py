"""Browsing the poison queue ``quintain.poison``: messages that could not be processed, kept for an operator."""
