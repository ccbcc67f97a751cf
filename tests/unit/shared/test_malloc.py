"""Large blocks stay out of the heap of the C library."""

from __future__ import annotations

import platform
import subprocess
import sys

#: In a process of its own, because the setting is one of the whole process. A block as a socket is read into is made
#: and freed three times: whether it was mapped by itself each time.
PROGRAM = """
import ctypes
from quintain.runtime.process_memory import map_large_blocks

class MallocInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("arena", "ordblks", "smblks", "hblks", *"456789")]

library = ctypes.CDLL(None)

def is_mapped():
    mapped_before = library.mallinfo().hblks
    block = bytes(256 * 1024)
    return library.mallinfo().hblks > mapped_before

if map_large_blocks():
    library.mallinfo.restype = MallocInfo
    print([is_mapped() for _ in range(3)])
else:
    print("another C library")
"""


def test_blocks_that_sockets_are_read_into_stay_out_of_the_heap() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout.strip()
    assert found == (str([True] * 3) if platform.libc_ver()[0] == "glibc" else "another C library")
