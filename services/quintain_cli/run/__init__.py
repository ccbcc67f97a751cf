"""What `run` and `check` need: a backend, the session of a run, its output and its usage."""
