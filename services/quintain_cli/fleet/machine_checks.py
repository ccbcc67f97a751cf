"""What a check of `quintain doctor` is, and the checks of machines: encryption, files, disk, clocks, the database."""

from __future__ import annotations

import ipaddress
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from quintain.bus.broker_url import all_node_urls, url_user, without_password
from quintain.contracts.message import Message
from quintain_metadata import DatabaseServer

#: Below this the ledger may lose what it is told, in bytes.
MIN_FREE_BYTES = 1024**3

#: How far a clock may be off, in seconds: deadlines of calls are times of the clock, and a ``Date`` header is rounded.
MAX_SKEW_SECONDS = 2.0

#: Beyond this, calls expire before they are tried, in seconds.
_FAILING_SKEW_SECONDS = 10.0

#: What a setting of PostgreSQL must not be, and what a crash of its machine then loses.
_UNSAFE_SETTINGS: Mapping[str, tuple[str, str]] = {
    "fsync": ("off", "a crash of its machine can destroy the ledger"),
    "full_page_writes": ("off", "a crash of its machine can destroy pages of the ledger"),
    "synchronous_commit": ("off", "a crash forgets calls that were charged and answered"),
}

CheckVerdict = Literal["ok", "note", "warn", "fail"]


class DoctorCheck(Message):
    """One check: what was checked (``what``), the verdict, what was found (``says``), and how to fix it (``mend``)."""

    what: str
    verdict: CheckVerdict
    says: str
    mend: str | None = None


def check_transport(urls: str) -> DoctorCheck:
    """Check that traffic to a broker on another machine is encrypted."""
    plain = [url for url in all_node_urls(urls) if urlsplit(url).scheme == "amqp" and not _is_here(url)]
    if not plain:
        return DoctorCheck(what="TLS", verdict="ok", says="encrypted, or on this machine")
    # A name without a dot, or a private address, may be a network of containers.
    verdict: CheckVerdict = "warn" if all(_is_private(url) for url in plain) else "fail"
    says = f"{without_password(plain[0])} is not encrypted: who is between reads every token and prompt"
    return DoctorCheck(what="TLS", verdict=verdict, says=says, mend="use amqps://, with cafile= for a CA of your own")


def check_broker_user(urls: str) -> DoctorCheck:
    """Check that a broker on another machine does not have RabbitMQ's default user."""
    user = url_user(urls)
    if user != "guest" or all(_is_here(url) for url in all_node_urls(urls)):
        return DoctorCheck(what="broker user", verdict="ok", says=user)
    fix = "`quintain broker add-user NAME --role ROLE`, then remove guest"
    return DoctorCheck(what="broker user", verdict="fail", says="guest, whose password everybody knows", mend=fix)


def check_modes(paths: Iterable[Path], shared: CheckVerdict = "fail") -> Iterator[DoctorCheck]:
    """Check that nobody else can read files that hold tokens or calls; yields one check for each that exists.

    ``shared`` is the verdict on one that others can read.
    """
    for path in paths:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
        if mode & 0o077:
            fix = f"chmod go= {path}"
            yield DoctorCheck(
                what=str(path), verdict=shared, says=f"others have rights on it (mode {mode:o})", mend=fix
            )
        else:
            yield DoctorCheck(what=str(path), verdict="ok", says=f"for its owner alone (mode {mode:o})")


def check_free_disk(folder: Path, min_free_bytes: int = MIN_FREE_BYTES) -> DoctorCheck:
    """Check that the disk of the ledger has room."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    says = f"{free / 1024**3:.1f} GiB free at {folder}"
    if free >= min_free_bytes:
        return DoctorCheck(what="disk", verdict="ok", says=says)
    return DoctorCheck(
        what="disk", verdict="fail", says=says, mend="free some: a ledger that cannot be written to stops"
    )


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or "localhost"
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_private(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host


def check_clock(what: str, clock: float, now: float) -> DoctorCheck:
    """Compare a clock of a server with this machine's, both in seconds since the epoch."""
    skew = clock - now
    if abs(skew) <= MAX_SKEW_SECONDS:
        return DoctorCheck(what=what, verdict="ok", says=f"within {MAX_SKEW_SECONDS:g} s of this machine's")
    verdict: CheckVerdict = "fail" if abs(skew) > _FAILING_SKEW_SECONDS else "warn"
    says = (
        f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's: calls expire too early or too late"
    )
    return DoctorCheck(what=what, verdict=verdict, says=says, mend="run NTP (chrony, systemd-timesyncd) on both")


def database_checks(server: DatabaseServer, now: float) -> Iterator[DoctorCheck]:
    """Check the clock and the durability of a PostgreSQL server."""
    yield check_clock("clock of the database", server.clock, now)
    unsafe = [name for name, (wrong, _) in _UNSAFE_SETTINGS.items() if server.settings.get(name) == wrong]
    for name in unsafe:
        wrong, loss = _UNSAFE_SETTINGS[name]
        fix = f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"
        yield DoctorCheck(what=f"durability: {name}", verdict="fail", says=f"{wrong}: {loss}", mend=fix)
    if not unsafe:
        yield DoctorCheck(what="durability", verdict="ok", says="the database writes what it confirms")
