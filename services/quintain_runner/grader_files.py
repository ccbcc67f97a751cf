"""The files of one grader's look at an answer: in a folder of their own, and gone after it."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from quintain_runner.grader_images import Keep
from quintain_runner.verdict import GraderError


@contextlib.contextmanager
def grader_files() -> Iterator[Keep]:
    """Keeps files for a grader, in a folder that is made for the first; it is gone when this is left.

    What it gives raises `GraderError` where a file cannot be written.
    """
    with contextlib.ExitStack() as stack:

        @functools.cache
        def folder() -> Path:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quintain-grader-")))

        def keep(name: str, data: bytes) -> str:
            try:
                path = folder() / name
                path.write_bytes(data)
            except OSError as error:
                raise GraderError(
                    f"A file for it cannot be written in {tempfile.gettempdir()} ({error.strerror}); make room there, "
                    "or name another folder in TMPDIR"
                ) from None
            return str(path)

        yield keep
