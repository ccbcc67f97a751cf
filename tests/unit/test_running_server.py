"""Which test server is chosen, for both kinds, with stand-ins for Docker, apt-get and the servers' programs."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.servers.chooser import running_server
from support.servers.errors import ServerUnavailable
from support.servers.kind import Server, ServerKind
from support.servers.packages import DebianPackages, TemporaryFile, written
from support.servers.postgres import POSTGRES, find_programs
from support.servers.rabbitmq import RABBITMQ, find_rabbitmq_server

Kind = ServerKind[Any]


@contextlib.contextmanager
def stand_in(program: Path, environment: Mapping[str, str]) -> Iterator[Server[Any]]:
    yield Server(url=f"started:{program}", how=f"a private server of {program}", admin=object())


@pytest.fixture(params=[RABBITMQ, POSTGRES], ids=["rabbitmq", "postgres"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind, whose server would start from /programs; every named server answers with version 1.2."""
    packages = dataclasses.replace(request.param.packages, find=lambda _: Path("/programs"))
    return dataclasses.replace(request.param, packages=packages, private_server=stand_in, read_version=lambda _: "1.2")


def named(kind: Kind, url: str) -> dict[str, str]:
    return {kind.url_variable: url}


def test_a_named_server_is_taken_first_and_tests_may_not_stop_it(kind: Kind) -> None:
    reported: list[str] = []
    url = f"{kind.schemes[0]}://me:hidden@127.0.0.1:1/"
    with running_server(kind, named(kind, url), reported.append) as server:
        assert (server.url, server.admin) == (url, None)
    assert reported == [f"{kind.label}: {kind.product} 1.2 at 127.0.0.1:1, named by {kind.url_variable}"]


@pytest.mark.parametrize("original", [RABBITMQ, POSTGRES], ids=["rabbitmq", "postgres"])
def test_a_named_server_that_does_not_answer_is_an_error_and_no_other_is_started(original: Kind) -> None:
    kind = dataclasses.replace(original, private_server=stand_in)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound, not listening: every connection to it is refused
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        url = f"{kind.schemes[0]}://me:hidden@{address}/"
        with pytest.raises(
            ServerUnavailable, match=f"{kind.url_variable} names a {kind.product} at {address}"
        ) as raised:
            running_server(kind, named(kind, url), print).__enter__()
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "{scheme}://me:hid#den@127.0.0.1:1/"])
def test_a_wrong_url_is_an_error_that_does_not_show_the_password(kind: Kind, url: str) -> None:
    variables = named(kind, url.format(scheme=kind.schemes[0]))
    with pytest.raises(ServerUnavailable, match=f"{kind.url_variable} cannot be used") as raised:
        running_server(kind, variables, print).__enter__()
    assert "hid" not in str(raised.value)


def test_without_docker_the_machines_own_programs_are_started(kind: Kind, tmp_path: Path) -> None:
    reported: list[str] = []
    with running_server(kind, {"PATH": str(tmp_path)}, reported.append) as server:
        assert server.url == "started:/programs"
    assert reported == [f"{kind.label}: a private server of /programs"]


@pytest.mark.parametrize(
    ("choice", "text"), [("container", "Tried:\n  container: `docker"), ("podman", "may be container or server")]
)
def test_a_choice_that_cannot_be_had_is_an_error_and_no_other_is_started(
    kind: Kind, choice: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(ServerUnavailable, match=text) as raised:
        running_server(kind, {"PATH": str(tmp_path), "QUINTAIN_TEST_BROKER": choice}, print).__enter__()
    assert "server:" not in str(raised.value)


def test_missing_packages_are_installed_while_services_and_clusters_are_forbidden(tmp_path: Path) -> None:
    log, rule = tmp_path / "log", tmp_path / "rules" / "rule"
    apt = tmp_path / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "$@" >> {log}\n[ "$4" = update ] || /bin/cat {rule} >> {log}\n')
    apt.chmod(0o755)
    packages = DebianPackages(("a-server",), lambda _: apt if log.exists() else None, (TemporaryFile(rule, "no\n"),))
    reported: list[str] = []
    assert packages.find_or_install({"PATH": str(tmp_path)}, reported.append) == apt
    assert log.read_text().splitlines()[1:] == [
        "-q -o DPkg::Lock::Timeout=120 install -y --no-install-recommends a-server",
        "no",
    ]
    assert reported == ["installing a-server from the distribution's packages"]
    assert not rule.exists()


def test_a_policy_that_forbids_services_is_executable_and_an_operators_own_is_kept(tmp_path: Path) -> None:
    policy = dataclasses.replace(RABBITMQ.packages.while_installing[0], path=tmp_path / "policy-rc.d")
    with written(policy):
        refusal = subprocess.run([policy.path, "a-server", "start"], check=False)
    assert refusal.returncode == 101  # what Debian's policy-rc.d answers for: forbidden
    assert not policy.path.exists()
    policy.path.write_text("theirs")
    with written(policy):
        pass
    assert policy.path.read_text() == "theirs"


def test_the_wrapper_of_debians_package_is_not_taken_for_the_broker(tmp_path: Path) -> None:
    path, packaged = tmp_path / "sbin", tmp_path / "lib" / "bin"
    for folder in (path, packaged):
        folder.mkdir(parents=True)
    for name in ("rabbitmq-env", "rabbitmq-script-wrapper"):
        (packaged / name).touch()
    (path / "rabbitmq-server").symlink_to(packaged / "rabbitmq-script-wrapper")
    assert find_rabbitmq_server({"PATH": str(path)}, [str(packaged)]) is None
    (packaged / "rabbitmq-server").touch()
    assert find_rabbitmq_server({"PATH": str(path)}, [str(packaged)]) == packaged / "rabbitmq-server"


def test_the_newest_postgres_with_a_server_is_taken(tmp_path: Path) -> None:
    for version, programs in {"9": ["initdb", "postgres"], "15": ["initdb", "postgres"], "16": ["psql"]}.items():
        folder = tmp_path / version / "bin"
        folder.mkdir(parents=True)
        for program in programs:
            (folder / program).touch(mode=0o755)
    assert find_programs({"PATH": str(tmp_path)}, f"{tmp_path}/*/bin") == tmp_path / "15" / "bin"
    assert find_programs({"PATH": str(tmp_path)}, f"{tmp_path}/*/nothing") is None
