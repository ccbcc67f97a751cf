"""The ledger's store: its interface, SQLite, PostgreSQL, the tables, and what opens one."""
