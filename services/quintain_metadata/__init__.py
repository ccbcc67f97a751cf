"""The metadata service: sessions and their tokens, info, the ledger, default targets and unknown ones."""
