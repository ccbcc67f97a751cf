"""Compose and Kubernetes describe one fleet: the same images, users, rights and variables."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from support.kubernetes_manifests import (
    REPOSITORY,
    Workload,
    generated_secrets,
    names_of_kind,
    objects_of_kind,
    services,
)

DOCKERFILE = REPOSITORY / "deploy" / "Dockerfile"
DEFINITIONS = REPOSITORY / "deploy" / "rabbitmq" / "definitions.json"
RABBITMQ_CONF = DEFINITIONS.with_name("rabbitmq.conf")
COMPOSE = REPOSITORY / "docker-compose.yml"

#: KEDA's user, as nothing scales by itself under Compose; and the address at which a kubelet asks for health.
IN_KUBERNETES_ALONE = {"scaler", "QUINTAIN_OPS_HOST"}

RIGHTS = ("configure", "write", "read")


def definitions() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DEFINITIONS.read_text())
    return found


def compose_environment(service: str) -> dict[str, str]:
    told: dict[str, str] = yaml.safe_load(COMPOSE.read_text())["services"][service]["environment"]
    return told


def test_both_have_the_same_users_with_the_same_rights() -> None:
    compose = {each["user"]: {right: each[right] for right in RIGHTS} for each in definitions()["permissions"]}
    granted = [each["spec"] for each in objects_of_kind("Permission")]
    kubernetes = {each["userReference"]["name"]: each["permissions"] for each in granted}
    assert (len(granted), kubernetes.keys()) == (len(kubernetes), names_of_kind("User"))
    assert {f"broker-{name}" for name in kubernetes} == {
        name for name in generated_secrets() if name.startswith("broker-")
    }
    assert compose == {user: have for user, have in kubernetes.items() if user not in IN_KUBERNETES_ALONE}
    tags = {each["metadata"]["name"]: each["spec"].get("tags", []) for each in objects_of_kind("User")}
    assert {each["name"]: each["tags"] for each in definitions()["users"]} == {
        user: have for user, have in tags.items() if user not in IN_KUBERNETES_ALONE
    }


def test_the_scaler_may_look_and_nothing_else() -> None:
    (scaler,) = [each for each in objects_of_kind("User") if each["metadata"]["name"] == "scaler"]
    assert scaler["spec"]["tags"] == ["management"]
    (rights,) = [
        each["spec"]["permissions"]
        for each in objects_of_kind("Permission")
        if each["spec"]["userReference"]["name"] == "scaler"
    ]
    assert set(rights.values()) == {"^$"}


def test_both_have_the_same_policies() -> None:
    keys = {"name": "name", "vhost": "vhost", "pattern": "pattern", "apply-to": "applyTo", "priority": "priority"}
    kubernetes = [each["spec"] for each in objects_of_kind("Policy")]
    assert definitions()["policies"] == [
        {**{ours: spec[theirs] for ours, theirs in keys.items()}, "definition": spec["definition"]}
        for spec in kubernetes
    ]


def test_both_have_the_same_limits_of_users_and_of_the_virtual_host() -> None:
    limits = {each["metadata"]["name"]: each["spec"]["limits"] for each in objects_of_kind("User")}
    assert {user: {f"max-{what}": most for what, most in have.items()} for user, have in limits.items()} == {
        **{user["name"]: user["limits"] for user in definitions()["users"]},
        "scaler": definitions()["users"][0]["limits"],
    }
    (vhost,) = objects_of_kind("Vhost")
    (limits_of_vhost,) = definitions()["parameters"]
    assert limits_of_vhost["vhost"] == vhost["spec"]["name"]
    assert limits_of_vhost["value"] == {f"max-{what}": most for what, most in vhost["spec"]["limits"].items()}


def test_both_give_the_broker_the_same_largest_message_and_frame() -> None:
    wanted = {"max_message_size", "frame_max"}
    (cluster,) = objects_of_kind("RabbitmqCluster")
    kubernetes = cluster["spec"]["rabbitmq"]["additionalConfig"]
    lines = [re.findall(r"^(\w+) = (\d+)$", text, re.MULTILINE) for text in (kubernetes, RABBITMQ_CONF.read_text())]
    of_both = [{name: value for name, value in found if name in wanted} for found in lines]
    assert of_both[0] == of_both[1]
    assert of_both[0].keys() == wanted


@pytest.mark.parametrize("workload", services(), ids=lambda workload: workload.name)
def test_each_image_is_a_stage_whose_user_it_runs_as(workload: Workload) -> None:
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)$(.*?)(?=^FROM|\Z)", DOCKERFILE.read_text(), re.MULTILINE | re.DOTALL))
    name = workload.container["image"].partition(":")[0].removeprefix("quintain-")
    user, group = workload.pod["securityContext"]["runAsUser"], workload.pod["securityContext"]["runAsGroup"]
    assert f"USER {user}:{group}\n" in stages[name]
    assert 'ENTRYPOINT ["quintain"]' in stages["base"], "the arguments here begin with the command's own"


@pytest.mark.parametrize("workload", services(), ids=lambda workload: workload.name)
def test_a_service_is_told_by_the_same_variables(workload: Workload) -> None:
    compose, here = compose_environment(workload.name), workload.environment
    assert here.keys() - IN_KUBERNETES_ALONE == compose.keys()
    # Files lie elsewhere; what is no file has the same value.
    assert {name: here[name] for name in compose if not name.endswith("_FILE")} == {
        name: value for name, value in compose.items() if not name.endswith("_FILE")
    }
    read = (REPOSITORY / "shared" / "quintain" / "settings.py").read_text()
    assert {name for name in workload.environment if f'"{name.removesuffix("_FILE")}"' not in read} == set()
