"""The controller side of hosted targets: leases, runs, and a `Target` whose instance runs on another host.

The connection runs on a thread of its own, because synchronous calls may block the controller's event loop.
"""
