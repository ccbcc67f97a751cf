"""The metadata service: sessions and their tokens, the call ledger, routing of unrouted requests, and dead letters."""
