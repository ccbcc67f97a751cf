"""The checks of `quintain doctor` of servers: clocks, and whether a PostgreSQL keeps what it has confirmed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from quintain_cli.fleet.doctor_check import CheckVerdict, DoctorCheck
from quintain_metadata import DatabaseServer

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
