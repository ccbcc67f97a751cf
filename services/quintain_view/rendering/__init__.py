"""Renders view models as HTML: templates, the style sheet and the script, which a server or a single file delivers."""
