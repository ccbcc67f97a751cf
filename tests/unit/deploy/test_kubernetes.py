"""What no schema says: every name leads somewhere, nothing secret is written down, and a drain outlasts a call."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import typer.main
import yaml

from generate.checkout import tracked
from quintain.topology import target_topology
from quintain_cli.__main__ import app
from quintain_cli.broker_checks import TRIED_VERSIONS
from support.kubernetes_manifests import (
    BROKER_PODS,
    EXAMPLE,
    EXTERNAL_CLIENTS,
    REPOSITORY,
    Workload,
    generated_secrets,
    monitors,
    names_of_kind,
    object_named,
    objects,
    objects_of_kind,
    printed_secrets,
    selects,
    services,
    values_of_key,
    workloads,
)

WORKLOADS = workloads()
SERVICES = services()
PODS = [*(each.labels for each in WORKLOADS), BROKER_PODS]


def by_name(workload: Workload) -> str:
    return workload.name


def test_the_fleet_is_the_one_of_the_compose_file() -> None:
    assert {each.name for each in SERVICES} == {"metadata", "worker", "gateway", "host"}
    assert {each.name: each.spec.get("replicas") for each in SERVICES if each.name != "worker"} == {
        "metadata": 2,
        "gateway": 2,
        "host": 2,
    }
    assert object_named("RabbitmqCluster", "rabbitmq")["spec"]["replicas"] == 3
    assert object_named("RabbitmqCluster", "rabbitmq")["spec"]["image"] == f"rabbitmq:{TRIED_VERSIONS[-1]}-management"


def test_everything_says_what_it_is_and_is_in_one_namespace() -> None:
    for each in objects():
        if each["kind"] == "ConfigMap":
            continue  # made from a file, and named after it
        assert "app.kubernetes.io/name" in each["metadata"]["labels"], each["metadata"]["name"]
    assert {each["metadata"].get("namespace") for each in objects() if each["kind"] != "Namespace"} == {"quintain"}


# -- Names lead somewhere.


def test_every_secret_and_its_key_is_one_that_the_script_makes() -> None:
    asked = {
        (source["secret"]["name"], item["key"])
        for each in WORKLOADS
        for sources in values_of_key(each.pod, "sources")
        for source in sources
        for item in source["secret"]["items"]
    }
    asked |= {
        (reference["name"], reference["key"])
        for each in objects_of_kind("TriggerAuthentication")
        for reference in each["spec"]["secretTargetRef"]
    }
    for user in objects_of_kind("User"):
        name = user["spec"]["importCredentialsSecret"]["name"]
        asked |= {(name, "username"), (name, "password")}
        assert generated_secrets()[name]["username"] == user["metadata"]["name"]
    assert asked == {(name, key) for name, key in asked if key in generated_secrets().get(name, {})}


def test_the_script_makes_new_values_each_time_and_leaves_a_database_of_your_own_alone() -> None:
    own = {each["metadata"]["name"]: each for each in printed_secrets("--own-database", "--namespace", "evals")}
    assert own.keys() == generated_secrets().keys() - {"ledger"}
    for name, each in own.items():
        assert each["metadata"]["namespace"] == "evals"
        assert not set(each["stringData"].values()) & set(generated_secrets()[name].values()) - {
            name.removeprefix("broker-")
        }
        if name.startswith("broker-"):
            assert each["metadata"]["labels"]["rabbitmq.com/topology-operator"] == "true"
    assert "rabbitmq.evals.svc" in own["broker-worker"]["stringData"]["broker-url"]


def test_a_file_named_by_a_variable_is_one_that_is_mounted() -> None:
    for each in SERVICES:
        mounted = {
            f"{mount['mountPath']}/{item['path']}"
            for mount in each.container["volumeMounts"]
            for volume in each.pod["volumes"]
            if volume["name"] == mount["name"]
            for sources in values_of_key(volume, "sources")
            for source in sources
            for item in source["secret"]["items"]
        }
        assert {value for name, value in each.environment.items() if name.endswith("_FILE")} == mounted, each.name


def test_every_configuration_and_every_volume_is_there() -> None:
    for each in WORKLOADS:
        assert {reference["name"] for reference in values_of_key(each.pod, "configMap")} <= names_of_kind("ConfigMap")
        claims = {claim["metadata"]["name"] for claim in each.spec.get("volumeClaimTemplates", [])}
        volumes = {volume["name"] for volume in each.pod["volumes"]} | claims
        assert {mount["name"] for mount in each.container["volumeMounts"]} == volumes, each.name


def test_a_host_that_a_secret_names_is_a_service() -> None:
    there = names_of_kind("Service") | names_of_kind(
        "RabbitmqCluster"
    )  # the operator names its Service after the cluster
    asked = {
        host
        for data in generated_secrets().values()
        for value in data.values()
        for host in re.findall(r"[@/]([a-z0-9-]+)\.quintain\.svc", value)
    }
    assert asked == {"rabbitmq", "postgres"}
    assert asked <= there
    assert {each["spec"]["serviceName"] for each in objects_of_kind("StatefulSet")} <= there


def test_selectors_select_what_they_are_for() -> None:
    for each in WORKLOADS:
        assert selects(each.spec["selector"]["matchLabels"], each.labels), each.name
    for service in objects_of_kind("Service"):
        (chosen,) = [each for each in WORKLOADS if selects(service["spec"]["selector"], each.labels)]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= chosen.ports.keys()
    for each in WORKLOADS:
        for spread in each.pod.get("topologySpreadConstraints", []):
            chosen_labels = spread["labelSelector"]["matchLabels"]
            assert [one.name for one in WORKLOADS if selects(chosen_labels, one.labels)] == [each.name]


def test_each_service_has_a_disruption_budget_that_selects_it_alone_and_lets_a_node_go() -> None:
    budgets = {each["metadata"]["name"]: each["spec"] for each in objects_of_kind("PodDisruptionBudget")}
    assert budgets.keys() == {each.name for each in SERVICES} | {"rabbitmq"}
    for name, budget in budgets.items():
        chosen = [labels for labels in PODS if selects(budget["selector"]["matchLabels"], labels)]
        expected = [each.labels for each in SERVICES if each.name == name] or [BROKER_PODS]
        assert chosen == expected
        assert (budget.get("minAvailable"), budget.get("maxUnavailable")) in {(1, None), (None, 1)}


def test_a_network_policy_is_about_pods_that_are_there() -> None:
    for policy in objects_of_kind("NetworkPolicy"):
        about = policy["spec"]["podSelector"].get("matchLabels", {})
        assert any(selects(about, labels) for labels in [*PODS, EXTERNAL_CLIENTS])
        for selector in values_of_key(
            [policy["spec"].get("ingress", []), policy["spec"].get("egress", [])], "podSelector"
        ):
            assert any(selects(selector["matchLabels"], labels) for labels in [*PODS, EXTERNAL_CLIENTS])


def reaches(source: dict[str, str], port: int | str) -> list[str]:
    """Whom such a pod's own policies let it speak to at this port, by their name label."""
    return [
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"]
        for policy in objects_of_kind("NetworkPolicy")
        if selects(policy["spec"]["podSelector"].get("matchLabels", {}), source)
        for rule in policy["spec"].get("egress", [])
        if {"port": port} in rule.get("ports", [])
        for peer in rule["to"]
        if "podSelector" in peer
    ]


def test_the_ledgers_database_is_the_metadata_services_alone() -> None:
    assert {each.name: reaches(each.labels, 5432) for each in SERVICES if reaches(each.labels, 5432)} == {
        "metadata": ["postgres"]
    }
    assert all(reaches(each.labels, 5672) == ["rabbitmq"] for each in SERVICES)
    assert (reaches(EXTERNAL_CLIENTS, 5672), reaches(EXTERNAL_CLIENTS, "http")) == (["rabbitmq"], ["quintain"])
    (everybody,) = [each for each in objects_of_kind("NetworkPolicy") if each["metadata"]["name"] == "nothing-else"]
    assert everybody["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


@pytest.mark.parametrize("workload", WORKLOADS, ids=by_name)
def test_a_probe_asks_at_a_port_that_is_open(workload: Workload) -> None:
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = workload.container[probe].get("httpGet")
        if asked is None:
            assert workload not in SERVICES
            continue
        assert asked["port"] in workload.ports
        assert asked["path"] == ("/health/ready" if probe == "readinessProbe" else "/health/live")


def test_the_ports_are_the_ones_that_the_services_are_told() -> None:
    for each in SERVICES:
        public = {"http": int(each.option("--port"))} if each.name == "gateway" else {}
        assert each.ports == {"ops": int(each.environment["QUINTAIN_OPS_PORT"]), **public}
        assert each.environment["QUINTAIN_OPS_HOST"] == "0.0.0.0"


@pytest.mark.parametrize("workload", SERVICES, ids=by_name)
def test_the_command_line_is_one_that_quintain_takes(workload: Workload) -> None:
    command: Any = typer.main.get_command(app)
    words = list(workload.container["args"])
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    context = command.make_context(workload.name, words)
    assert context.command.name == workload.name


# -- Nothing secret is written down, and nothing more is allowed than is needed.


def test_no_secret_is_in_the_folder() -> None:
    assert objects_of_kind("Secret") == []
    written = "".join(path.read_text() for path in tracked("deploy/kubernetes/**/*"))
    assert re.findall(r"[a-z]+://[^/\s{}]+:[^/\s{}]+@", written) == []
    for each in WORKLOADS:
        told = {name for name in each.environment if re.search("PASSWORD|TOKEN|KEY|SECRET|_URL", name)}
        assert {name for name in told if not name.endswith("_FILE")} == set(), each.name


@pytest.mark.parametrize("workload", WORKLOADS, ids=by_name)
def test_a_pod_may_do_what_it_must_and_no_more(workload: Workload) -> None:
    assert workload.pod["automountServiceAccountToken"] is False
    allowed = workload.pod["securityContext"]
    assert allowed["runAsNonRoot"] is True
    assert allowed["runAsUser"] > 0
    assert allowed["seccompProfile"] == {"type": "RuntimeDefault"}
    assert workload.container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= workload.container["resources"]["requests"].keys()
    assert "memory" in workload.container["resources"]["limits"]


# -- Drains and numbers.


def test_the_monitoring_overlay_scrapes_each_service_as_prometheus_does_elsewhere() -> None:
    (monitor,) = [each["spec"] for each in monitors()]
    (endpoint,) = monitor["podMetricsEndpoints"]
    scraped = [labels for labels in PODS if selects(monitor["selector"]["matchLabels"], labels)]
    assert [each.labels for each in SERVICES] == scraped
    assert all(endpoint["port"] in each.ports for each in SERVICES)
    elsewhere = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "prometheus.yaml").read_text())
    assert {labels[monitor["jobLabel"]] for labels in scraped} == {
        each["job_name"] for each in elsewhere["scrape_configs"]
    }
    assert (endpoint["path"], endpoint["interval"]) == ("/metrics", elsewhere["global"]["scrape_interval"])
    (policy,) = [each["spec"] for each in objects_of_kind("NetworkPolicy") if each["metadata"]["name"] == "services"]
    (allowed,) = policy["ingress"]
    assert (policy["podSelector"], allowed["ports"]) == (monitor["selector"], [{"port": endpoint["port"]}])


@pytest.mark.parametrize("name", ["worker", "gateway", "host"])
def test_a_drain_lasts_for_long_and_the_cluster_waits_for_it(name: str) -> None:
    (workload,) = [each for each in SERVICES if each.name == name]
    grace_seconds = float(workload.option("--grace-seconds"))
    assert grace_seconds >= 1500
    pause_seconds = workload.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    # Only who is called through a Service has to leave it first.
    assert (pause_seconds >= 10) == (name == "gateway")
    assert workload.pod["terminationGracePeriodSeconds"] >= pause_seconds + grace_seconds + 60


def test_each_target_of_the_configuration_is_scaled_by_its_own_queues() -> None:
    written = yaml.safe_load((EXAMPLE / "quintain.yaml").read_text())["targets"]
    (scaled,) = objects_of_kind("ScaledObject")
    triggers = [each["metadata"] for each in scaled["spec"]["triggers"]]
    for each, name in zip(triggers, written, strict=True):
        assert each["useRegex"] == "true"
        assert all(re.fullmatch(each["queueName"], queue.name) for queue in target_topology(name).queues)
        assert not any(re.fullmatch(each["queueName"], f"quintain.target.{name}{more}") for more in ("2", ".b"))
        # The management API alone tells what is unacknowledged, and only where it is not left out.
        assert (each["protocol"], each["mode"], each["excludeUnacknowledged"]) == ("http", "QueueLength", "false")
        assert float(each["value"]) > 0
    assert {each["authenticationRef"]["name"] for each in scaled["spec"]["triggers"]} == names_of_kind(
        "TriggerAuthentication"
    )


def test_the_scaler_alone_says_how_many_workers_there_are() -> None:
    (scaled,) = objects_of_kind("ScaledObject")
    worker = object_named("Deployment", scaled["spec"]["scaleTargetRef"]["name"])
    assert "replicas" not in worker["spec"]
    assert 2 <= scaled["spec"]["minReplicaCount"] < scaled["spec"]["maxReplicaCount"]


def test_images_are_of_this_version() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert {each.container["image"] for each in SERVICES} == {f"quintain-{each.name}:{version}" for each in SERVICES}
