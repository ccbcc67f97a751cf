"""A hostile program: tries to leave its sandbox in every way that it knows, and prints as JSON what succeeded.

It changes nothing outside of its namespaces: what it opens for writing it does not write to. It runs as a script, with
the standard library alone. On stdin is a JSON object of the files that it may not read (``secrets``), of a word in the
environments of other processes (``canary``), which is also the name of an abstract socket outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_MS_REMOUNT, _MS_BIND, _MNT_DETACH = 32, 4096, 2
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_PTRACE_SEIZE = 0x4206

Attempts = Iterator[tuple[str, Callable[[], object]]]


def main() -> None:
    """Try everything, print what succeeded, and kill every process that can be killed."""
    given = json.load(sys.stdin)
    secrets = [*given["secrets"], "/etc/shadow", "/proc/kcore", "/proc/kmsg"]
    found = _in_a_namespace_of_its_own(secrets)
    for attempts in (
        _capabilities(),
        _settings(),
        _processes(given["canary"]),
        _mounts(secrets),
        _new_mounts(),
    ):
        found += _succeeded(attempts)
    print(json.dumps(found), flush=True)
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)


def _succeeded(attempts: Attempts) -> list[str]:
    found = []
    for name, attempt in attempts:
        with contextlib.suppress(OSError):
            attempt()
            found.append(name)
    return found


def _called(function: str, *arguments: object) -> int:
    """Call the system. Raises `OSError`."""
    result: int = getattr(_LIBC, function)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), function)
    return result


def _opened(path: str, flags: int) -> None:
    os.close(os.open(path, flags))


def _read(path: str) -> None:
    with Path(path).open("rb") as file:
        file.read(1)


def _mounts(secrets: Iterable[str]) -> Attempts:
    """Take away what hides files, and then read them."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    for point in reversed([line.split()[4] for line in lines]):
        name = point.encode()
        yield f"remounts {point}", partial(_called, "mount", None, name, None, _MS_REMOUNT | _MS_BIND, None)
        yield f"unmounts {point}", partial(_called, "umount2", name, _MNT_DETACH)
    for path in secrets:
        for root in ("", "/proc/1/root", f"/proc/{os.getppid()}/root"):
            yield f"reads {root}{path}", partial(_read, f"{root}{path}")


def _new_mounts() -> Attempts:
    yield "mounts", partial(_called, "mount", b"none", b"/tmp", b"tmpfs", 0, None)
    yield "binds", partial(_called, "mount", b"/", b"/tmp", None, _MS_BIND, None)
    yield "changes its root", partial(os.chroot, "/tmp")
    for kind in ("mnt", "pid", "net", "user"):
        yield f"joins {kind}", partial(_join, f"/proc/1/ns/{kind}")


def _join(namespace: str) -> None:
    _called("setns", os.open(namespace, os.O_RDONLY), 0)


def _settings() -> Attempts:
    listed = [f"{folder}/{name}" for folder, _, names in os.walk("/proc/sys") for name in names]
    for path in (*listed, "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/sys/kernel/uevent_helper"):
        yield f"sets {path}", partial(_opened, path, os.O_WRONLY)
    yield "remounts settings", partial(_called, "mount", None, b"/proc/sys", None, _MS_REMOUNT | _MS_BIND, None)
    yield "sets core_pattern after it", partial(_opened, "/proc/sys/kernel/core_pattern", os.O_WRONLY)


def _capabilities() -> Attempts:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":\t", 1) for line in lines)
    for kind in ("CapPrm", "CapEff", "CapAmb"):
        if int(status[kind], 16):
            yield f"has {kind} {status[kind]}", lambda: None
    for kind in ("Uid", "Gid", "Groups"):
        if "0" in status[kind].split():
            yield f"has {kind} 0", lambda: None
    if status["NoNewPrivs"] != "1":
        yield "gets new privileges", lambda: None
    for fd in (int(path.name) for path in Path("/proc/self/fd").iterdir()):
        if fd > 2:
            yield f"has the open file {fd}", partial(os.fstat, fd)
    Path("/tmp/file").touch()
    yield "becomes root", partial(os.setuid, 0)
    yield "has root's group", partial(os.setgroups, [0])
    yield "makes a device", partial(os.mknod, "/tmp/device", 0o20600, os.makedev(1, 1))
    yield "gives a file away", partial(os.chown, "/tmp/file", 0, 0)
    yield "names the machine", partial(socket.sethostname, "hostile")
    yield "raw socket", partial(socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    yield "takes priority", partial(os.setpriority, os.PRIO_PROCESS, 0, -5)


def _processes(canary: str) -> Attempts:
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        if pid != os.getpid():
            yield f"sees the environment of {pid}", partial(_find, canary, f"/proc/{pid}/environ")
        if pid not in {1, os.getpid()}:
            yield f"traces {pid}", partial(_called, "ptrace", _PTRACE_SEIZE, pid, None, None)
    yield "reaches a socket", partial(socket.socket(socket.AF_UNIX).connect, f"\0{canary}")


def _find(canary: str, path: str) -> None:
    if canary.encode() not in Path(path).read_bytes():
        raise FileNotFoundError(path)


def _in_a_namespace_of_its_own(secrets: Iterable[str]) -> list[str]:
    """What root of a new user namespace can do with what it inherits; nothing where this user may make none."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        user, group = os.getuid(), os.getgid()
        with contextlib.suppress(OSError):
            _called("unshare", _CLONE_NEWUSER | _CLONE_NEWNS)
            Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="ascii")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="ascii")
            found = [*_succeeded(_settings()), *_succeeded(_mounts(secrets))]
            os.write(writing, json.dumps([f"as root of its own: {name}" for name in found]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = json.loads(pipe.read() or b"[]")
    os.wait()
    return found


if __name__ == "__main__":
    main()
