"""What the ledger keeps and decides: sessions, calls, workers, targets, replies."""
