"""The target host: leases out fresh instances of one target, and runs them for controllers on other machines."""
