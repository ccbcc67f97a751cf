"""The controlling side of hosted targets: leases, runs, and a Target that is somewhere else.

The connection lives on a thread of its own: a controller's loop may be blocked by the very call that waits for it.
"""
