"""What happens to sessions, calls, targets and workers in the ledger, as SQL programs that any store runs."""
