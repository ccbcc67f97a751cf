"""The lines that a program of ours exchanges with the process that started it (`quintain.programs.line_program`)."""

from __future__ import annotations

import os
from threading import Lock


class LineWire:
    """The program's ends of both pipes, on descriptors of their own.

    What it runs has an empty standard input, and its standard output is standard error: nothing that it prints is taken
    for a line.
    """

    def __init__(self) -> None:
        self.input, self._output = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        self._lock = Lock()  # what runs may report from threads of its own
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        os.dup2(2, 1)

    def write(self, line: bytes) -> None:
        """Write one line, which is given without its end."""
        with self._lock:
            self._output.write(line + b"\n")
            self._output.flush()
