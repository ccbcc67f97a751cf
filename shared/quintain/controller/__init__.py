"""What a program needs to drive a leased target itself: its scope, its event channel, its trajectories, and the lease.

The scope, the channel and the trajectory do no I/O, and behave as superred's classes do; docs/agents.md has the
differences.
"""
