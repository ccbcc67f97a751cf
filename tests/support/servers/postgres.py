"""PostgreSQL as a kind of server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from support.servers.container import Container
from support.servers.kind import ContainerImage, ServerKind, wait_for_version
from support.servers.packages import NO_SERVICE_STARTS, DebianPackages, TemporaryFile
from support.servers.postgres_admin import PostgresAdmin
from support.servers.postgres_cluster import private_cluster
from support.servers.postgres_sql import read_version, run_sql

#: Debian keeps the programs off the PATH, in one folder for each major version.
_PACKAGED = "/usr/lib/postgresql/*/bin"

#: Debian creates a cluster when it installs the package; this setting forbids it.
_NO_CLUSTER = TemporaryFile(
    Path("/etc/postgresql-common/createcluster.d/quintain-test.conf"), "create_main_cluster = false\n"
)

_LOGIN = "quintain"
_START_SECONDS = 120.0


def find_programs(environment: Mapping[str, str], packaged: str = _PACKAGED) -> Path | None:
    """Return the folder with ``initdb`` and ``postgres``, of the newest version where there are several; or None."""
    folders = [Path(folder) for folder in environment.get("PATH", "").split(os.pathsep) if folder]
    folders += sorted(Path("/").glob(packaged.lstrip("/")), key=_version, reverse=True)
    for folder in folders:
        if all(shutil.which(program, path=str(folder)) for program in ("initdb", "postgres")):
            return (folder / "postgres").resolve().parent  # what is on the PATH may be a link
    return None


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.parent.name.split(".") if part.isdigit())


def _container_admin(container: Container) -> PostgresAdmin:
    # Without fsync a crash of the server loses nothing, only a crash of the machine does, and no test makes one.
    run_sql(container.url, "ALTER SYSTEM SET fsync = off")
    run_sql(container.url, "SELECT pg_reload_conf()")

    def start() -> None:
        container.start()
        wait_for_version(
            lambda: read_version(container.url), timeout_seconds=_START_SECONDS, alive=container.is_running
        )

    return PostgresAdmin(
        crash=lambda: container.stop("QUIT"),
        stop=lambda: container.stop("INT"),
        kill=lambda: container.stop("KILL"),
        start=start,
    )


POSTGRES = ServerKind(
    label="postgres",
    product="PostgreSQL",
    url_variable="QUINTAIN_TEST_POSTGRES_URL",
    schemes=("postgresql", "postgres"),
    default_port=5432,
    url=f"postgresql://{_LOGIN}:{{password}}@{{address}}/postgres",
    image=ContainerImage(
        name="postgres:17",
        port=5432,
        environment={"POSTGRES_USER": _LOGIN, "POSTGRES_PASSWORD": "{password}", "POSTGRES_DB": "postgres"},
    ),
    packages=DebianPackages(("postgresql",), find_programs, while_installing=(NO_SERVICE_STARTS, _NO_CLUSTER)),
    read_version=read_version,
    container_admin=_container_admin,
    private_server=private_cluster,
)
