"""Storage of the ledger: the `Ledger` interface and its SQLite and PostgreSQL implementations."""
