"""The view models of the pages: what each shows, as plain values. No I/O."""
