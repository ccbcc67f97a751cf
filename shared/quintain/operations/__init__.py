"""What a running service says of itself: whether it lives, whether it is ready, its numbers, and who it is."""
