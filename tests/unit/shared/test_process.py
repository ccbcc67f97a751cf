"""Processes: memory that is collected and kept out of the heap of the C library, and starts that are cancelled."""

from __future__ import annotations

import platform
import subprocess
import sys

# Cycles that outlive the young generations are collected in a process with very many objects, too.


#: In a process of its own: the garbage collector is the whole process's. Of the objects that refer to themselves each
#: second one is in use until 1,000 more of those are made. What is printed is how many are left.
CYCLES = """
import collections
import gc
from quintain.runtime.process_memory import exempt_existing_objects

class Node:
    def __init__(self):
        self.itself = self

packages = [[] for _ in range(300_000)]
gc.collect()
exempt_existing_objects()
in_use = collections.deque(maxlen=1_000)
for _ in range(150_000):
    Node()
    in_use.append(Node())
print(sum(type(each) is Node for each in gc.get_objects()))
"""

#: Each time the youngest objects are collected, 1,000 nodes in use join the next generation. The oldest one is
#: collected after 18 of these at the earliest.
MAX_LEFT = 30_000


def test_cycles_are_collected_although_the_packages_are_many_objects() -> None:
    found = subprocess.run([sys.executable, "-c", CYCLES], capture_output=True, text=True, check=True)
    assert int(found.stdout) < MAX_LEFT  # 8,944 on Python 3.11, and 38,130 without the exemption


# Large blocks stay out of the heap of the C library.


#: In a process of its own, because the setting is one of the whole process. A block as a socket is read into is made
#: and freed three times: whether it was mapped by itself each time.
BLOCKS = """
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
    found = subprocess.run([sys.executable, "-c", BLOCKS], capture_output=True, text=True, check=True).stdout.strip()
    assert found == (str([True] * 3) if platform.libc_ver()[0] == "glibc" else "another C library")


# A program whose start is cancelled has ended, and is known to have ended, before its caller goes on.


#: Each loop ends at once after the cancellation: what nobody has waited for is then warned of on stderr.
CANCELLED = """
import asyncio, gc, os
from quintain.programs.processes import start_process
from quintain.programs.program import Program

async def start_and_cancel(turns):
    starting = asyncio.ensure_future(start_process(Program(argv=["sleep", "600"], env={"PATH": os.defpath})))
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    print("cancelled" if starting.cancelled() else "started")

for turns in range(6):
    asyncio.run(start_and_cancel(turns))
    gc.collect()
"""


def test_a_start_that_is_cancelled_leaves_no_process_that_nobody_waits_for() -> None:
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", CANCELLED]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert ended.stderr == ""
    assert "cancelled" in ended.stdout
