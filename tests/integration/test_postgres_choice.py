"""Which PostgreSQL the tests take, tried with real servers; and that ours leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from quintain.errors import ConfigError, QuintainError
from quintain.settings import environment
from quintain.testing.postgres import PostgresUnderTest, find_postgres
from quintain.testing.postgres_container import IMAGE
from quintain.testing.postgres_server import find_programs, no_cluster_made
from quintain.testing.postgres_under_test import read_version, run_sql

#: Starts a server as any program would, says where it is, and waits to be ended.
STARTER = """
import signal, time
from quintain.settings import environment
from quintain.testing.postgres import find_postgres
from quintain.testing.postgres_under_test import run_sql
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
with find_postgres(environment(), print) as server:
    print(server.url, run_sql(server.url, "SHOW data_directory"), flush=True)
    time.sleep(600)
"""

#: Only where there is neither a server nor the right to install one: there Docker serves the other tests.
needs_server = pytest.mark.skipif(
    find_programs(environment()) is None and os.geteuid() != 0,
    reason="no PostgreSQL here, and only root may install one: apt-get install -y postgresql",
)


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresUnderTest]:
    """A private cluster, whatever else this machine offers."""
    with find_postgres(only("server"), print) as server:
        yield server


def only(choice: str, **more: str) -> Mapping[str, str]:
    return environment() | {"QUINTAIN_TEST_POSTGRES_URL": "", "QUINTAIN_TEST_BROKER": choice} | more


def answers(url: str) -> bool:
    try:
        read_version(url)
    except OSError:
        return False
    return True


def processes_of(folder: Path) -> list[str]:
    """The commands of all processes that have the folder's path in their arguments or their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in told:
            found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


@needs_server
def test_a_named_server_is_taken_before_all_others_and_is_not_ours_to_stop(own_server: PostgresUnderTest) -> None:
    said: list[str] = []
    with find_postgres(only("container", QUINTAIN_TEST_POSTGRES_URL=own_server.url), said.append) as taken:
        assert (taken.url, taken.admin) == (own_server.url, None)
    assert answers(own_server.url)
    (line,) = said
    assert line.startswith(f"postgres: PostgreSQL {read_version(own_server.url)} at 127.0.0.1:")
    assert line.endswith("named by QUINTAIN_TEST_POSTGRES_URL")


def test_a_named_server_that_does_not_answer_is_an_error_and_no_other_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: every connection to it is refused
        port = taken.getsockname()[1]
        named = only("", QUINTAIN_TEST_POSTGRES_URL=f"postgresql://me:hidden@127.0.0.1:{port}/db")
        with pytest.raises(QuintainError) as raised, find_postgres(named, print):
            pass
    assert f"QUINTAIN_TEST_POSTGRES_URL names a PostgreSQL at 127.0.0.1:{port}" in str(raised.value)
    assert "unset the variable" in str(raised.value)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:5432/", "postgresql://me:hid#den@127.0.0.1:5432/db"])
def test_a_named_server_whose_url_is_none_is_an_error_without_the_password(url: str) -> None:
    named = only("", QUINTAIN_TEST_POSTGRES_URL=url)
    with (
        pytest.raises(ConfigError, match="QUINTAIN_TEST_POSTGRES_URL cannot be") as raised,
        find_postgres(named, print),
    ):
        pass
    assert "hid" not in str(raised.value)


def test_a_choice_that_nobody_knows_is_an_error_that_names_the_known_ones() -> None:
    with (
        pytest.raises(ConfigError, match="'podman'; it may be container or server"),
        find_postgres(only("podman"), print),
    ):
        pass


def test_without_a_docker_engine_a_forced_container_says_what_was_tried_and_what_to_do() -> None:
    nowhere = only("container", DOCKER_HOST="unix:///nowhere/docker.sock")
    with pytest.raises(QuintainError) as raised, find_postgres(nowhere, print):
        pass
    assert "container: `docker version" in str(raised.value)
    assert "server:" not in str(raised.value)
    assert "Start a PostgreSQL and name it" in str(raised.value)


@needs_server
def test_without_a_docker_engine_the_machines_own_server_is_taken() -> None:
    said: list[str] = []
    with find_postgres(only("", DOCKER_HOST="unix:///nowhere/docker.sock"), said.append) as taken:
        assert answers(taken.url)
    assert "a private cluster of" in said[-1]
    assert not answers(taken.url)


def test_the_newest_of_several_versions_is_taken_and_one_without_a_server_never(tmp_path: Path) -> None:
    for version, programs in {"9": ["initdb", "postgres"], "15": ["initdb", "postgres"], "16": ["psql"]}.items():
        folder = tmp_path / version / "bin"
        folder.mkdir(parents=True)
        for program in programs:
            (folder / program).touch(mode=0o755)
    assert find_programs({"PATH": str(tmp_path)}, f"{tmp_path}/*/bin") == tmp_path / "15" / "bin"
    assert find_programs({"PATH": str(tmp_path)}, f"{tmp_path}/*/nothing") is None


def test_while_a_server_is_installed_no_cluster_is_made_and_afterwards_one_may_be(tmp_path: Path) -> None:
    folder = tmp_path / "createcluster.d"
    with no_cluster_made(folder):
        (setting,) = folder.iterdir()
        assert setting.suffix == ".conf"  # only these are read
        assert setting.read_text() == "create_main_cluster = false\n"
    assert list(folder.iterdir()) == []


@needs_server
def test_a_private_server_listens_on_the_loopback_alone_and_keeps_its_socket_to_itself(
    own_server: PostgresUnderTest,
) -> None:
    assert run_sql(own_server.url, "SHOW listen_addresses") == "127.0.0.1"
    folder = Path(str(run_sql(own_server.url, "SHOW data_directory"))).parent
    assert run_sql(own_server.url, "SHOW unix_socket_directories") == str(folder)
    assert folder.stat().st_mode & 0o077 == 0


@needs_server
def test_a_fresh_database_is_empty_and_gone_afterwards_whoever_is_still_connected(
    own_server: PostgresUnderTest,
) -> None:
    with own_server.fresh_database() as url:
        run_sql(url, "CREATE TABLE left_behind (a text)")
        with own_server.fresh_database() as other:
            assert run_sql(other, "SELECT to_regclass('left_behind')") is None
    assert run_sql(own_server.url, "SELECT count(*) FROM pg_database WHERE datname LIKE 'quintain_test%'") == 0


@needs_server
def test_a_private_server_that_crashed_and_started_answers_at_the_same_address_with_its_data(
    own_server: PostgresUnderTest,
) -> None:
    assert own_server.admin is not None
    with own_server.fresh_database() as url:
        run_sql(url, "CREATE TABLE kept (a text)")
        own_server.admin.crash()
        assert not answers(url)
        own_server.admin.start()
        assert run_sql(url, "SELECT count(*) FROM kept") == 0


@needs_server
# SIGTERM, which Python leaves to the kernel, ends a process as SIGKILL does.
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_private_server_ends_with_its_starter_however_that_ends(how: signal.Signals) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER],
        env={**only("server"), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert starter.stdout is not None
    with starter:
        url, data = next(line for line in starter.stdout if line.startswith("postgresql://")).split()
        folder = Path(data).parent
        assert processes_of(folder)
        starter.send_signal(how)
    # No listener, folder or process is left; the test's own timeout bounds it.
    while answers(url) or folder.exists() or processes_of(folder):
        time.sleep(0.1)


@pytest.mark.docker
@pytest.mark.timeout(600)
def test_where_docker_answers_a_container_is_taken_and_removed() -> None:
    said: list[str] = []
    with find_postgres(only("container"), said.append) as taken:
        assert f"a container of {IMAGE}" in said[-1]
        assert taken.admin is not None
        with taken.fresh_database() as url:
            taken.admin.crash()
            assert not answers(url)
            taken.admin.start()
            assert answers(url)
    assert not answers(taken.url)
