"""The target host: leases fresh instances of one target to controllers on other machines, and runs them."""
