"""Labels: what people noted about answers, kept in ``notes.jsonl``, and how far graders agree with it."""
