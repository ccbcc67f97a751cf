"""The gateway: HTTP at the edge. It translates requests into questions on the bus, and holds no provider key."""
