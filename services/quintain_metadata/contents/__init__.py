"""The content store: the bytes of bodies that are larger than a message, in a folder or in the ledger's database."""
