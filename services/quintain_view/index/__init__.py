"""The index of a results folder: an SQLite file beside ``results.jsonl`` with what lists and filters of trials need."""
