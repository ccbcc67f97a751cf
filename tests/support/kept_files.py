"""Files that a grader would be given, kept in memory."""

from __future__ import annotations


class KeptFiles(dict[str, bytes]):
    """Every file by its path."""

    def keep(self, name: str, data: bytes) -> str:
        """Keep a file, as `quintain_runner.grader_images.Keep`."""
        path = f"/kept/{name}"
        self[path] = data
        return path
