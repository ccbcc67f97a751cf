"""``quintain doctor``: checks the broker, its declarations and the ledger, and says how to fix what is wrong."""

from __future__ import annotations

import asyncio
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from quintain.bus.rabbit_declarations import DeclarationStatus, inspect_broker
from quintain.contracts.fleet_figures import FleetFigures
from quintain.contracts.message import MAX_BODY_BYTES, Message
from quintain.errors import BrokerRefused, BudgetUnavailable, BusError, ConfigError
from quintain.fleet.tables import provider_trouble
from quintain.settings import Settings, environment, read_settings, secret_file_paths, without_password
from quintain.topology import METADATA_TOPOLOGY, SETTLE_QUEUE, Exchange, Queue, target_topology
from quintain_cli.broker_checks import (
    CheckVerdict,
    DoctorCheck,
    check_broker_user,
    check_clock,
    check_declaration,
    check_message_size,
    check_transport,
    management_checks,
    version_checks,
)
from quintain_cli.broker_management import Management, open_management
from quintain_cli.commands.status import look_at_fleet
from quintain_cli.console import EXIT_ERRORS, EXIT_OK, AsJson, print_result, print_stderr, print_table, run_command
from quintain_cli.role_checks import check_running_roles
from quintain_cli.running_fleet import fleet_broker_url, has_stored_ledger, ledger_url, require_admin_token
from quintain_metadata.ledger.targets import target_names
from quintain_metadata.store.base import redacted_url as shown_ledger
from quintain_metadata.store.opening import DatabaseServer, open_snapshot
from quintain_metadata.store.schema import SCHEMA_VERSION


def doctor(
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that each check may take.")] = 5.0,
    management: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask RabbitMQ's management API there, such as http://HOST:15672.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the broker, its exchanges and queues, and the ledger.

    Also checks which services answer, encryption, the largest message, the modes of files with secrets, the free disk
    and a PostgreSQL's settings; with --management alarms, the limits and bindings of queues, feature flags, the rights
    and limits of users, foreign exchanges and queues, and the broker's clock. Nothing is changed. Reads
    QUINTAIN_BROKER_URL, QUINTAIN_LEDGER_URL and QUINTAIN_ADMIN_TOKEN.

    Exit codes: 0 no check failed, 1 a check failed, 2 a setting cannot be used.
    """
    report = run_command(_run_checks(timeout, management), as_json=as_json)
    code = EXIT_ERRORS if report.has_failures else EXIT_OK
    if as_json:
        print_result(report, code)
    else:
        _print_report(report)
    raise typer.Exit(code)


async def _run_checks(timeout: float, management: str | None) -> DoctorReport:
    settings = read_settings(environment())
    url = fleet_broker_url(settings)
    return await run_checks(
        settings,
        url,
        timeout_seconds=timeout,
        management=None if management is None else open_management(url, management, timeout_seconds=timeout),
        secret_files=secret_file_paths(environment()),
    )


def _print_report(report: DoctorReport) -> None:
    # What is to be done stands last, where one looks.
    checks = sorted(report.lines, key=lambda check: _VERDICTS.index(check.verdict))
    rows = ((check.verdict, check.what, check.says, check.mend or "") for check in checks)
    print_table(rows, ("", "what", "result", "fix"))
    failed_count = sum(check.verdict == "fail" for check in report.lines)
    print_stderr(
        f"next     fix {failed_count} of these, then quintain doctor" if failed_count else "next     quintain status"
    )


#: The verdicts in the order in which they are printed.
_VERDICTS: Sequence[CheckVerdict] = ("ok", "note", "warn", "fail")


class DoctorReport(Message):
    """The checks, in the order in which they were done."""

    lines: list[DoctorCheck] = Field(default_factory=list)

    @property
    def has_failures(self) -> bool:
        """Whether any check failed."""
        return any(check.verdict == "fail" for check in self.lines)


async def run_checks(
    settings: Settings,
    url: str,
    *,
    timeout_seconds: float,
    management: Management | None = None,
    secret_files: Iterable[Path] = (),
) -> DoctorReport:
    """Check the broker at ``url``, the ledger of the settings, and this machine.

    ``timeout_seconds`` is the timeout of each check; one that does not end is a failed check, as is an unavailable
    broker. What only RabbitMQ's management API tells is checked if ``management`` is given. The modes of
    ``secret_files`` are checked.
    """
    ledger, targets = await _ledger_checks(settings, timeout_seconds)
    # Alarms first: under one of them nothing that sends a message ends.
    of_targets = [queue for name in targets for queue in target_topology(name).queues]
    queues = [queue.name for queue in (*METADATA_TOPOLOGY.queues, *of_targets)]
    told = [_MANAGEMENT_NOTE]
    if management is not None:
        told = await asyncio.to_thread(lambda: list(management_checks(management, queues, check_running_roles)))
    try:
        checks = await _broker_checks(settings, url, targets, timeout_seconds)
    except BusError as error:
        fix = _REFUSED_FIX if isinstance(error, BrokerRefused) else _ABSENT_FIX
        checks = [DoctorCheck(what="broker", verdict="fail", says=error.message, mend=fix)]
    # A container's secrets may be readable by all users of a container that has one.
    modes = check_modes(secret_files, shared="warn")
    return DoctorReport(lines=[*checks, *ledger, *told, *_machine_checks(settings, url), *modes])


#: How to mend that the broker refuses the URL, or that there is none.
_REFUSED_FIX = (
    "correct the user, the password or the virtual host in QUINTAIN_BROKER_URL: `quintain broker add-user NAME --role "
    "ROLE` prints them; a virtual host is made with `rabbitmqctl add_vhost NAME`"
)
_ABSENT_FIX = "start a broker, or set QUINTAIN_BROKER_URL to one that runs"


def _machine_checks(settings: Settings, url: str) -> list[DoctorCheck]:
    scheme, _, path = ledger_url(settings).partition("://")
    files = [settings.state_dir / name for name in ("admin-token", "ledger.sqlite3")]
    checks = [check_transport(url), check_broker_user(url)]
    if scheme == "sqlite" and path.startswith("/"):
        checks.append(check_free_disk(Path(path).parent))
        files.append(Path(path))
    return [*checks, *check_modes(dict.fromkeys(file.absolute() for file in files))]


#: Without the management API, a client cannot see them.
_MANAGEMENT_NOTE = DoctorCheck(
    what="management API",
    verdict="note",
    says="not asked: policies, feature flags, alarms and users are not checked",
    mend="quintain doctor --management http://HOST:15672, with a user that has the tag administrator",
)


async def _broker_checks(
    settings: Settings, url: str, targets: Iterable[str], timeout_seconds: float
) -> list[DoctorCheck]:
    """Check the broker, its declarations and the services behind it. Raises `BusError` if it cannot be reached."""
    checks = [DoctorCheck(what="broker", verdict="ok", says=without_password(url))]
    declarations: list[Exchange | Queue] = [*METADATA_TOPOLOGY.exchanges, *METADATA_TOPOLOGY.queues]
    declarations += [queue for name in targets for queue in target_topology(name).queues]
    found: list[DoctorCheck] = []
    is_declared = False
    async with inspect_broker(url, timeout_seconds=timeout_seconds) as inspection:
        checks += version_checks(await inspection.version())
        for declaration in declarations:
            try:
                async with asyncio.timeout(timeout_seconds):
                    check = await inspection.check(declaration)
            except TimeoutError:
                found.append(_unanswered(declaration.name, timeout_seconds))
                break
            found.append(check_declaration(check))
            # Who may not compare one may not look for the others either: whether services run is seen by asking them.
            is_hidden = check.status is DeclarationStatus.HIDDEN
            is_declared |= is_hidden or (declaration == SETTLE_QUEUE and check.status is DeclarationStatus.SAME)
            if is_hidden:
                break
    async with inspect_broker(url, timeout_seconds=timeout_seconds) as inspection:
        try:
            async with asyncio.timeout(timeout_seconds):
                await inspection.refuses_message_of(0)
        except TimeoutError:
            says = f"no message was taken within {timeout_seconds:g} s"
            fix = "see `rabbitmq-diagnostics alarms`: under an alarm, free memory or disk, or raise its limit"
            return [*checks, DoctorCheck(what="alarms", verdict="fail", says=says, mend=fix), *found]
        try:
            async with asyncio.timeout(timeout_seconds):
                refuses_larger = await inspection.refuses_message_of(MAX_BODY_BYTES + 1)
            checks.append(check_message_size(refuses_larger=refuses_larger))
        except TimeoutError:
            checks.append(_unanswered("message size", timeout_seconds))
    return [*checks, *found, *await _fleet_checks(settings, url, timeout_seconds, is_declared=is_declared)]


async def _fleet_checks(
    settings: Settings, url: str, timeout_seconds: float, *, is_declared: bool
) -> list[DoctorCheck]:
    """Check who answers, as `quintain status` does; ``is_declared`` says whether a metadata service has run here."""
    if not is_declared:
        fix = "start `quintain serve metadata` and `quintain serve worker`"
        says = "not asked: no metadata service has declared its queues"
        return [DoctorCheck(what="services", verdict="note", says=says, mend=fix)]
    try:
        token = require_admin_token(settings)
    except ConfigError as error:
        return [DoctorCheck(what="services", verdict="note", says="not asked", mend=error.message)]
    wait_seconds = min(1.0, timeout_seconds)
    try:
        async with asyncio.timeout(timeout_seconds + 3 * wait_seconds):
            figures = await look_at_fleet(
                url, "doctor", token, wait_seconds=wait_seconds, timeout_seconds=timeout_seconds
            )
    except TimeoutError:
        return [_unanswered("services", timeout_seconds)]
    except BusError as error:
        fix = "`quintain broker add-user NAME --role operator`, and its URL"
        return [DoctorCheck(what="services", verdict="warn", says=error.message, mend=fix)]
    return list(check_services(figures))


def check_services(figures: FleetFigures) -> Iterator[DoctorCheck]:
    """Check the services and targets of a fleet."""
    told: tuple[tuple[CheckVerdict, Sequence[str]], ...] = (("fail", figures.problems), ("warn", figures.warnings))
    troubles = {"; ".join(trouble): trouble for quota in figures.quotas if (trouble := provider_trouble(quota))}
    for verdict, texts in told:
        for text in texts:
            what = "provider" if text in troubles else "services"
            says, mend = troubles.get(text, (text, "`quintain status` lists them"))
            yield DoctorCheck(what=what, verdict=verdict, says=says, mend=mend)
    if not figures.problems and not figures.warnings:
        yield DoctorCheck(what="services", verdict="ok", says=f"{figures.answering} answer")


def _unanswered(what: str, timeout_seconds: float) -> DoctorCheck:
    says = f"no answer within {timeout_seconds:g} s: not checked, as is what depends on it"
    return DoctorCheck(what=what, verdict="fail", says=says, mend="look for its cause there, or give --timeout more")


async def _ledger_checks(settings: Settings, timeout_seconds: float) -> tuple[list[DoctorCheck], list[str]]:
    """Return the checks of the ledger, and the names of its registered targets."""
    url = ledger_url(settings)
    if settings.ledger_url is None and not has_stored_ledger(settings):
        text = "not checked: QUINTAIN_LEDGER_URL is not set, and the state folder has no ledger"
        return [
            DoctorCheck(
                what="ledger", verdict="note", says=text, mend="run this command where the metadata service runs"
            )
        ], []
    try:
        async with asyncio.timeout(timeout_seconds), open_snapshot(url) as snapshot:
            version = await snapshot.version()
            targets = await snapshot.read(target_names()) if version else []
            server = await snapshot.server()
    except (ConfigError, BudgetUnavailable) as error:
        fix = "set QUINTAIN_LEDGER_URL to the URL that the metadata service uses"
        return [DoctorCheck(what="ledger", verdict="fail", says=error.message, mend=fix)], []
    except TimeoutError:
        return [_unanswered("ledger", timeout_seconds)], []
    of_server = [] if server is None else list(database_checks(server, time.time()))
    return [_check_schema(shown_ledger(url), version), *of_server], targets


def _check_schema(shown: str, version: int) -> DoctorCheck:
    text = f"{shown}, schema {version}"
    if version < SCHEMA_VERSION:
        fix = f"this release migrates it to {SCHEMA_VERSION} when its metadata service starts"
        return DoctorCheck(what="ledger", verdict="warn", says=text, mend=fix)
    if version > SCHEMA_VERSION:
        fix = f"this release supports {SCHEMA_VERSION}: upgrade quintain"
        return DoctorCheck(what="ledger", verdict="fail", says=text, mend=fix)
    return DoctorCheck(what="ledger", verdict="ok", says=text)


#: Below this the ledger may lose what it is told, in bytes.
MIN_FREE_BYTES = 1024**3


#: What a setting of PostgreSQL must not be, and what a crash of its machine then loses.
_UNSAFE_SETTINGS: Mapping[str, tuple[str, str]] = {
    "fsync": ("off", "a crash of its machine can destroy the ledger"),
    "full_page_writes": ("off", "a crash of its machine can destroy pages of the ledger"),
    "synchronous_commit": ("off", "a crash forgets calls that were charged and answered"),
}


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
