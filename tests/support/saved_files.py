"""Files that a grader would be given, kept in memory."""

from __future__ import annotations


class SavedFiles(dict[str, bytes]):
    """Every file by its path."""

    def save_file(self, name: str, data: bytes) -> str:
        """Keep a file, as `quintain_runner.graders.input.Keep`."""
        path = f"/kept/{name}"
        self[path] = data
        return path
