"""Reads the text files that an evaluation file names; their paths are relative to its folder."""

from __future__ import annotations

from pathlib import Path

from quintain.errors import ConfigError


def read_text_file(folder: Path, path: str) -> str:
    """The content of the UTF-8 text file at ``path``, relative to ``folder``; a byte order mark is removed.

    Raises `ConfigError` if the file cannot be read or is not UTF-8.
    """
    try:
        return (folder / path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{folder / path}: cannot be read ({error.strerror}); its path is relative to the evaluation file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{folder / path}: not UTF-8 text; save it as UTF-8") from None
