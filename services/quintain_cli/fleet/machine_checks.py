"""The checks of `quintain doctor` that need no broker: encryption, files that others can read, free disk."""

from __future__ import annotations

import ipaddress
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from quintain.bus.broker_url import all_node_urls, url_user, without_password
from quintain_cli.fleet.doctor_check import CheckVerdict, DoctorCheck

#: Below this the ledger may lose what it is told, in bytes.
MIN_FREE_BYTES = 1024**3


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
