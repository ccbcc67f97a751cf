"""The limits of provider keys: found, shared fairly, and asked before the ledger."""
