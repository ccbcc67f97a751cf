"""What `quintain run` and `quintain check` do, apart from parsing their command lines."""
