"""What a program that a configuration names may do: as which user it runs, and in which sandbox.

Without either, it has the rights of this process. `docs/operate.md` states the boundary of each.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ConfigDict, Field

from quintain.contracts.values import NumberModel
from quintain.errors import ConfigError

#: The script that is the first process of a sandbox.
_FIRST_PROCESS = Path(__file__).with_name("sandbox_start.py")

#: Prints the first of its arguments that is a folder which cannot be entered, or a file which cannot be read.
_TRY_PATHS = (
    'for path; do if [ -d "$path" ]; then test -x "$path"; else test -r "$path"; fi || { echo "$path"; exit 0; }; done'
)

#: What a sandbox shows of the system: programs, libraries, certificates. Nothing of it is a secret.
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_SYSTEM_SETTINGS = (
    "alternatives", "ca-certificates", "crypto-policies", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "localtime", "mime.types", "nsswitch.conf", "passwd", "pki", "ssl/certs", "ssl/openssl.cnf",
)  # fmt: skip

#: What a sandbox hides of the folders that it shows: the state folder, and what is often a secret.
_HIDDEN_NAMES = (".quintain", ".env", ".git", "runs", "secrets")

#: Files of a results folder; a folder with the first of them is hidden.
_RESULTS_FILES = ("session-token", "ledger.sqlite3", "ledger.sqlite3-wal", "ledger.sqlite3-shm")

#: No user namespace: the first process in the sandbox takes the other user's rights, and has no further capability.
_UNSHARED_BY_ROOT = (
    "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
    "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID",
)  # fmt: skip

#: The user of a sandbox that root makes and that names none: root itself is confined by none, because the kernel lets
#: it write settings below ``/proc/sys`` without any capability, also in a user namespace.
_USER_OF_ROOTS_SANDBOX = "nobody"

#: Folders of a sandbox that are its own and empty.
_OWN_FOLDERS = ("/tmp", "/dev/shm")  # noqa: S108 -- its own

_LOOPBACK_HOSTS = ("127.0.0.1", "localhost")


class Sandbox(NumberModel):
    """A sandbox of bubblewrap, with its limits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["bwrap"] = "bwrap"
    """The program that makes the sandbox."""
    read: tuple[str, ...] = ()
    """More files and folders that the program may read; paths from the file that says so."""
    memory_mib: Annotated[int, Field(ge=16)] = 4096
    """The most memory of each process, in MiB."""
    processes: Annotated[int, Field(ge=1)] = 256
    """The most processes and threads."""


def _sandbox_of_name(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


#: The ``sandbox`` of a configuration: ``bwrap``, or a mapping with its limits.
SandboxOption = Annotated[
    Sandbox | None, BeforeValidator(_sandbox_of_name, json_schema_input_type=Sandbox | Literal["bwrap"] | None)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """The user and the sandbox of a program.

    In a sandbox it may read the folders ``read`` without ``hidden``, and write to ``write``; ``gateway`` is the only
    address that it reaches, by the same port on its own loopback. A sandbox that root makes runs as ``nobody`` where
    ``run_as`` names no other user.
    """

    run_as: str | None = None
    sandbox: Sandbox | None = None
    read: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    gateway: tuple[str, int] | None = None

    @property
    def user(self) -> str | None:
        """The other user that the program runs as; None if it runs as the user of this process."""
        if self.run_as is None and self.sandbox is not None and os.geteuid() == 0:
            return _USER_OF_ROOTS_SANDBOX
        return self.run_as

    @property
    def is_confined(self) -> bool:
        """Whether the program has fewer rights than this process."""
        return self.run_as is not None or self.sandbox is not None

    def share(self, path: Path) -> None:
        """Make the other user the owner of a file or folder that was made for the program."""
        if self.user is not None:
            entry = pwd.getpwnam(self.user)
            os.chown(path, entry.pw_uid, entry.pw_gid)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the program: with the other user's home folder."""
        if self.user is None:
            return dict(env)
        kept = {name: value for name, value in env.items() if name != "TMPDIR"}
        return {**kept, "HOME": pwd.getpwnam(self.user).pw_dir}

    def user_options(self) -> dict[str, Any]:
        """Return the options of `subprocess.Popen` that start a program as the other user.

        None in a sandbox: its first process takes that user's rights.
        """
        if self.run_as is None or self.sandbox is not None:
            return {}
        entry = pwd.getpwnam(self.run_as)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": _groups(entry)}

    def check(
        self, files: Iterable[Path] = (), folders: Iterable[Path] = (), env: Mapping[str, str] | None = None
    ) -> None:
        """Start a shell with these rights, which tries to read the ``files`` and to enter the ``folders``.

        Blocks for some milliseconds. Raises `ConfigError` if this machine cannot confine a program so, or if the
        program could not reach one of the paths.
        """
        if not self.is_confined:
            return
        if self.user is not None:
            _check_user(self.user)
        if self.sandbox is not None and shutil.which("bwrap") is None:
            raise ConfigError("sandbox: bwrap is not installed; install the package bubblewrap")
        files = list(files)
        paths = [*_and_parents(folders), *_and_parents(path.parent for path in files), *files]
        # Without the port: nobody accepts its connections here.
        alone = replace(self, gateway=None)
        control, other_end = socket.socketpair()
        with control, other_end:
            tried = subprocess.run(  # noqa: S603 -- fixed words
                [
                    *alone.wrapper(Path("/"), env or {}, control.fileno()),
                    "/bin/sh",
                    "-c",
                    _TRY_PATHS,
                    "sh",
                    *map(str, paths),
                ],
                cwd="/",
                env={"PATH": os.defpath},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                pass_fds=(control.fileno(),),
                **self.user_options(),
            )
        if tried.returncode != 0:
            said = tried.stderr.decode(errors="replace").strip()
            needed = "user namespaces" if self.user is None else "root CAP_SYS_ADMIN"
            raise ConfigError(f"sandbox: this machine does not allow it ({said}); allow {needed}, or use run_as alone")
        if unreachable := os.fsdecode(tried.stdout.removesuffix(b"\n")):
            below = [file for file in files if Path(unreachable) in file.parents]
            unreachable += f", and so not {below[0]}, which it runs" if below else ""
            if self.sandbox is None:
                fix = "give it the right to read and enter it, or move it"
                raise ConfigError(f"run_as: the user {self.run_as!r} may not read {unreachable}; {fix}")
            fix = "list it as its `read`"
            if self.user is not None:
                fix += f", and let the user {self.user!r} read and enter it, or name another one as its `run_as`"
            raise ConfigError(f"sandbox: the program would not reach {unreachable}; {fix}")

    def wrapper(self, cwd: Path | None, env: Mapping[str, str], control_fd: int) -> list[str]:
        """Return the words before the command: bubblewrap with its options, and the sandbox's first process.

        ``control_fd`` is the socket of `quintain.programs.sandbox_start`. Empty without a sandbox.
        """
        if self.sandbox is None:
            return []
        folder = cwd or Path.cwd()
        size = str(self.sandbox.memory_mib << 20)
        port = 0 if self.gateway is None else self.gateway[1]
        # The first process in the sandbox takes the other user's rights: that user need not reach the interpreter, nor
        # be allowed to make a user namespace.
        entry = None if self.user is None else pwd.getpwnam(self.user)
        unshare = ("--unshare-all", "--cap-drop", "ALL") if entry is None else _UNSHARED_BY_ROOT
        readable = [*self.read, *(folder / path for path in self.sandbox.read), *_interpreter_folders(env)]
        user = (
            ("0", "0", "")
            if entry is None
            else (str(entry.pw_uid), str(entry.pw_gid), ",".join(map(str, _groups(entry))))
        )
        return [
            shutil.which("bwrap") or "bwrap", *unshare, "--die-with-parent", "--new-session",
            "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev",
            *(word for path in _OWN_FOLDERS for word in ("--perms", "1777", "--size", size, "--tmpfs", path)),
            *_system_mounts(),
            *_open_parents([*readable, *self.write]),
            *(word for path in _outermost(readable) for word in ("--ro-bind", str(path), str(path))),
            *(word for path in self._hidden_below(readable) for word in _hide(path)),
            *(word for path in self.write for word in ("--bind", str(path), str(path))),
            "--setenv", "HOME", "/tmp", "--setenv", "TMPDIR", "/tmp",  # noqa: S108 -- the sandbox's own
            "--chdir", str(folder), "--",
            sys.executable, "-I", "-S", str(_FIRST_PROCESS),
            str(control_fd), str(port), size, str(self.sandbox.processes), *user,
        ]  # fmt: skip

    def _hidden_below(self, folders: list[Path]) -> list[Path]:
        found = [*self.hidden]
        for folder in self.read:
            found += [folder / name for name in (*_HIDDEN_NAMES, *_RESULTS_FILES)]
            found += [path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{_RESULTS_FILES[0]}")]
        shown = [folder.resolve() for folder in folders]
        existing = dict.fromkeys(path.resolve() for path in found if path.exists())
        return _outermost([path for path in existing if any(path.is_relative_to(folder) for folder in shown)])


#: A program with the rights of this process.
UNCONFINED = Confinement()


def gateway_address(url: str) -> tuple[str, int]:
    """Return the address of a gateway for programs in a sandbox.

    Raises `ConfigError` if the gateway is on another machine.
    """
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port
    if host not in _LOOPBACK_HOSTS or port is None:
        raise ConfigError(
            f"sandbox: programs in it reach a gateway on this machine's loopback only, and {url} is none; run the "
            "evaluation with QUINTAIN_BROKER_URL, or without the sandbox"
        )
    return "127.0.0.1", port


def _check_user(name: str) -> None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"run_as: there is no user {name!r} on this machine; create it") from None
    if entry.pw_uid == 0:
        raise ConfigError(f"run_as: {name!r} is root, which limits nothing; name another user")
    if os.geteuid() != 0:
        raise ConfigError(
            f"run_as: only root may start programs as {name!r}; use `sandbox: bwrap`, or start this as root"
        )


def _groups(entry: pwd.struct_passwd) -> list[int]:
    return os.getgrouplist(entry.pw_name, entry.pw_gid)


def _and_parents(folders: Iterable[Path]) -> list[Path]:
    """The folders and those above them, the outermost first."""
    absolute = [folder.absolute() for folder in folders]
    return sorted(
        {above for folder in absolute for above in (folder, *folder.parents)}, key=lambda path: len(path.parts)
    )


def _interpreter_folders(env: Mapping[str, str]) -> Iterator[Path]:
    """The folders of the Python interpreter, of this package and of the program's virtual environment."""
    names = [sys.prefix, sys.base_prefix, str(_FIRST_PROCESS.parents[1]), env.get("VIRTUAL_ENV", "")]
    yield from (Path(name) for name in names if name and Path(name).exists())


def _system_mounts() -> Iterator[str]:
    for name in _SYSTEM_FOLDERS:
        if Path(name).is_symlink():
            yield from ("--symlink", str(Path(name).readlink()), name)
        else:
            yield from ("--ro-bind-try", name, name)
    for name in _SYSTEM_SETTINGS:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")


def _open_parents(paths: list[Path]) -> Iterator[str]:
    """Folders above what is shown; bubblewrap would make them for its own user only."""
    parents = {parent for path in paths for parent in path.absolute().parents}
    for parent in sorted(parents, key=lambda parent: len(parent.parts)):
        if parent != Path("/") and not parent.is_relative_to("/usr"):
            yield from ("--perms", "0755", "--dir", str(parent))


def _outermost(paths: list[Path]) -> list[Path]:
    """The paths without those that are below another one, outer ones first."""
    kept: list[Path] = []
    for path in sorted(dict.fromkeys(path.absolute() for path in paths), key=lambda path: len(path.parts)):
        if not any(path.is_relative_to(outer) for outer in kept) and not path.is_relative_to("/usr"):
            kept.append(path)
    return kept


def _hide(path: Path) -> tuple[str, ...]:
    return ("--tmpfs", str(path)) if path.is_dir() else ("--ro-bind", "/dev/null", str(path))
