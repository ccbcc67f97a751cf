"""The worker process: its composition, its lease and its queue consumers."""
