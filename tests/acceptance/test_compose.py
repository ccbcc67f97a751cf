"""`docker compose up` for real: a fleet from nothing, its users' rights, an evaluation on it, and what breaks in it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pytest
import yaml

from support.compose_fleet import REPOSITORY, SERVICE_REPLICAS, ComposeFleet, compose_fleet
from support.waiting import block_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

CASES = 120

#: Two targets under test: one as slow as a model, one that lives on a host.
EVALUATION = {
    "dataset": "cases.jsonl",
    "targets": ["echo", "desk"],
    "max_calls": 2_000,
    "graders": [{"name": "same", "builtin": "contains"}],
}

#: Reads every file of a service's folder of secrets, and says how many hold something.
READ_ALL = """
import pathlib, sys
print(sum(1 for file in pathlib.Path("/run/quintain", sys.argv[1]).iterdir() if file.read_text()))
"""


@pytest.fixture(scope="module")
def fleet() -> Iterator[ComposeFleet]:
    with compose_fleet() as fleet:
        fleet.wait_until_healthy()
        yield fleet


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return evaluation_in(tmp_path / "evaluation")


@pytest.fixture(scope="module")
def undisturbed(fleet: ComposeFleet, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of the evaluation where nothing breaks."""
    folder = evaluation_in(tmp_path_factory.mktemp("undisturbed") / "evaluation")
    fleet.docker(*fleet.evaluation_args(folder, "--json"))
    rows = rows_of(folder)
    assert len(rows) == 2 * CASES
    assert {row["status"] for row in rows} == {"graded"}
    return rows


def evaluation_in(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0o777)  # the container's user is another one
    questions = (f"question {number}" for number in range(CASES))
    cases = ({"id": question.replace(" ", "-"), "question": question, "expected": question} for question in questions)
    (folder / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    (folder / "eval.yaml").write_text(yaml.safe_dump(EVALUATION))
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """What was found of each trial; not when, nor how long it took, nor what was charged on the way."""
    rows = map(json.loads, (folder / "results" / "results.jsonl").read_text().splitlines())
    told = ("caseId", "target", "repeat", "status", "output", "score")
    found = {(row["caseId"], row["target"]): {name: row[name] for name in told} for row in rows}
    return [found[key] for key in sorted(found)]


def verify_ledger(fleet: ComposeFleet) -> dict[str, Any]:
    """The ledger's books, recomputed."""
    words = ("compose", "exec", "--no-TTY", "metadata", "quintain", "ledger", "verify", "--json")
    said: dict[str, Any] = json.loads(fleet.docker(*words).stdout)
    return said


def broker_url(fleet: ComposeFleet, user: str) -> str:
    """The broker as seen from here, with the password that this installation made for the user."""
    read = "import sys; print(open(f'/run/quintain/all/broker-{sys.argv[1]}').read())"
    volume = f"{fleet.project}_secrets:/run/quintain:ro"
    password = fleet.docker("run", "--rm", "--volume", volume, "python:3.13-slim", "python", "-c", read, user).stdout
    return f"amqp://{user}:{password}@127.0.0.1:{fleet.env['QUINTAIN_AMQP_PORT']}/"


def test_one_command_brings_every_service_up(fleet: ComposeFleet) -> None:
    assert {service: len(fleet.container_ids(service)) for service in SERVICE_REPLICAS} == SERVICE_REPLICAS


def test_ours_run_as_users_of_their_own(fleet: ComposeFleet) -> None:
    users = set()
    for service in SERVICE_REPLICAS:
        told: Any = fleet.inspect(fleet.container_ids(service)[0])
        users.add(told["Config"]["User"])
    assert len(users) == len(SERVICE_REPLICAS)
    assert all(user.startswith("100") for user in users)


def test_every_container_is_read_only_limited_and_without_roots_rights(fleet: ComposeFleet) -> None:
    needed = {"postgres": {"CHOWN", "DAC_OVERRIDE", "SETGID", "SETUID"}}
    for service in (*SERVICE_REPLICAS, "rabbitmq", "postgres"):
        host: Any = fleet.inspect(fleet.container_ids(service)[0])["HostConfig"]
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        assert {name.removeprefix("CAP_") for name in host["CapAdd"] or []} == needed.get(service, set())
        assert host["SecurityOpt"] == ["no-new-privileges:true"], service
        assert 0 < host["Memory"] <= 2 << 30, service
        assert 0 < host["PidsLimit"] <= 1024, service
        assert {"max-size", "max-file"} <= host["LogConfig"]["Config"].keys(), service


def test_the_hashes_of_passwords_are_in_the_brokers_volume_alone(fleet: ComposeFleet) -> None:
    for service in (*SERVICE_REPLICAS, "rabbitmq", "postgres"):
        words = ("compose", "exec", "--no-TTY", service, "cat", "/run/definitions/definitions.json")
        assert ("password_hash" in fleet.docker(*words, code=None).stdout) == (service == "rabbitmq")
        found = fleet.docker(
            "compose", "exec", "--no-TTY", service, "find", "/run/quintain", "-name", "definitions*", code=None
        )
        assert "definitions" not in found.stdout


def test_the_brokers_limits_are_those_of_the_definitions(fleet: ComposeFleet) -> None:
    def listed(*words: str) -> Any:
        ctl = ("compose", "exec", "--no-TTY", "rabbitmq", "rabbitmqctl", "--quiet", *words)
        return json.loads(fleet.docker(*ctl, *(() if "limits" in words[0] else ("--formatter", "json"))).stdout)

    definitions = json.loads((REPOSITORY / "deploy/rabbitmq/definitions.json").read_text())
    assert {each["name"] for each in listed("list_policies")} == {each["name"] for each in definitions["policies"]}
    with pika.BlockingConnection(pika.URLParameters(broker_url(fleet, "evaluator"))) as connection:
        for kind, policy in (("classic", "own"), ("quorum", "own"), ("stream", "streams")):
            channel = connection.channel()
            name = f"quintain.reply.evaluator.{kind}"
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
            assert {each["name"]: each["policy"] for each in listed("list_queues", "name", "policy")}[name] == (
                f"quintain-{policy}"
            )
            channel.queue_delete(name)
    assert listed("list_vhost_limits") == {"max-queues": definitions["parameters"][0]["value"]["max-queues"]}
    assert listed("list_user_limits", "--user", "evaluator") == definitions["users"][0]["limits"]


def test_a_port_is_published_to_this_machine_alone(fleet: ComposeFleet) -> None:
    ports = fleet.docker("ps", "--filter", f"name={fleet.project}", "--format", "{{.Ports}}").stdout
    published = [port for port in ports.replace("\n", ", ").split(", ") if "->" in port]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_a_secret_is_read_by_the_service_it_was_made_for_and_by_no_other(fleet: ComposeFleet) -> None:
    for service in SERVICE_REPLICAS:
        mine = fleet.docker("compose", "exec", "--no-TTY", service, "python", "-c", READ_ALL, service)
        assert int(mine.stdout) >= 1
        for other in SERVICE_REPLICAS.keys() - {service}:
            theirs = fleet.docker("compose", "exec", "--no-TTY", service, "python", "-c", READ_ALL, other, code=None)
            assert theirs.code != 0
            assert "PermissionError" in theirs.stderr


def test_no_secret_is_in_a_containers_description_or_log(fleet: ComposeFleet) -> None:
    password = broker_url(fleet, "worker").partition("worker:")[2].partition("@")[0]
    described = [
        fleet.docker("inspect", one).stdout for service in SERVICE_REPLICAS for one in fleet.container_ids(service)
    ]
    assert password not in "".join(described)
    assert password not in fleet.docker("compose", "logs").stdout


def test_the_brokers_users_are_ours_and_none_may_do_what_is_anothers(fleet: ComposeFleet) -> None:
    listed = fleet.docker(
        "compose", "exec", "--no-TTY", "rabbitmq", "rabbitmqctl", "--quiet", "list_users", "--no-table-headers"
    )
    definitions = json.loads((REPOSITORY / "deploy/rabbitmq/definitions.json").read_text())
    assert {line.split()[0] for line in listed.stdout.splitlines()} == {user["name"] for user in definitions["users"]}
    with pika.BlockingConnection(pika.URLParameters(broker_url(fleet, "evaluator"))) as connection:
        for exchange in ("", "quintain.ledger", "quintain.reply", "quintain.probe"):
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
                channel.basic_publish(exchange, "quintain.metadata", b"{}")


def test_the_example_passes_and_the_same_command_again_changes_nothing(fleet: ComposeFleet) -> None:
    first = fleet.docker("compose", "run", "--rm", "--no-TTY", "run")
    assert "exit 0: mean score 0.812, threshold 0.7" in first.stdout
    again = fleet.docker("compose", "run", "--rm", "--no-TTY", "run")
    assert first.stdout[first.stdout.index("12 cases") :] == again.stdout[again.stdout.index("12 cases") :]


def test_one_command_again_changes_no_secret(fleet: ComposeFleet) -> None:
    before = broker_url(fleet, "host")
    fleet.docker("compose", "up", "--detach")
    assert broker_url(fleet, "host") == before
    fleet.wait_until_healthy()


def test_a_restart_of_the_broker_loses_nothing(
    fleet: ComposeFleet, folder: Path, undisturbed: list[dict[str, Any]]
) -> None:
    (broker,) = fleet.container_ids("rabbitmq")
    run = fleet.start(*fleet.evaluation_args(folder, "--json", "--concurrency", "1"))
    results = folder / "results" / "results.jsonl"
    block_until(lambda: results.is_file() and results.stat().st_size > 0)
    fleet.docker("restart", broker)
    run.communicate(timeout=240)
    fleet.wait_until_healthy()
    # A run of a hosted target is never repeated by itself: one that was cut off is asked again by who evaluates.
    fleet.docker(*fleet.evaluation_args(folder, "--json", "--in-doubt", "retry"))
    assert rows_of(folder) == undisturbed
    assert verify_ledger(fleet)["findings"] == []


def test_a_rolling_restart_of_every_service_under_load_loses_nothing(
    fleet: ComposeFleet, tmp_path: Path, undisturbed: list[dict[str, Any]]
) -> None:
    by_gateway = ("--env", "QUINTAIN_BROKER_URL_FILE=", "--env", "QUINTAIN_GATEWAY_URL=http://gateway:8787")
    restarted = threading.Event()
    with ThreadPoolExecutor() as doors:
        over_the_broker = doors.submit(evaluate_until_set, restarted, fleet, tmp_path / "broker", ())
        over_http = doors.submit(evaluate_until_set, restarted, fleet, tmp_path / "http", by_gateway)
        try:
            for container in [fleet.container_ids(service)[0] for service in SERVICE_REPLICAS]:
                fleet.docker("restart", "--time", "45", container)
                fleet.wait_until_healthy(container)
        finally:
            restarted.set()
        for folder in (*over_the_broker.result(), *over_http.result()):
            assert rows_of(folder) == undisturbed
    assert verify_ledger(fleet)["findings"] == []


def evaluate_until_set(
    stop: threading.Event, fleet: ComposeFleet, folder: Path, environment: tuple[str, ...]
) -> list[Path]:
    """Run the evaluation over and over, each time anew and to a good end; returns where the results are."""
    folder.mkdir()
    done: list[Path] = []
    while not stop.is_set():
        done.append(evaluation_in(folder / str(len(done))))
        words = fleet.evaluation_args(done[-1], "--json", "--concurrency", "2")
        fleet.docker(*words[:2], *environment, *words[2:])
    return done
