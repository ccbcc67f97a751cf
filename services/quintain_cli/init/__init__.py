"""``quintain init``: writes the files of a new evaluation, also from one of another tool."""
