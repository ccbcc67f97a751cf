"""Shows a running fleet: services answer who they are, and a model of it is drawn as tables."""
