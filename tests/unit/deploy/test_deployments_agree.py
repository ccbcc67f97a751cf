"""Compose and Kubernetes describe one fleet: the same images, users, rights and variables."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from support.kubernetes_manifests import REPOSITORY, Workload, objects_of_kind, services

DOCKERFILE = REPOSITORY / "deploy" / "Dockerfile"
DEFINITIONS = REPOSITORY / "deploy" / "rabbitmq" / "definitions.json"
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
    assert compose == {user: have for user, have in kubernetes.items() if user not in IN_KUBERNETES_ALONE}
    tags = {each["metadata"]["name"]: each["spec"].get("tags", []) for each in objects_of_kind("User")}
    assert {each["name"]: each["tags"] for each in definitions()["users"]} == {
        user: have for user, have in tags.items() if user not in IN_KUBERNETES_ALONE
    }


def test_both_have_the_same_policies() -> None:
    keys = {"name": "name", "vhost": "vhost", "pattern": "pattern", "apply-to": "applyTo", "priority": "priority"}
    kubernetes = [each["spec"] for each in objects_of_kind("Policy")]
    assert definitions()["policies"] == [
        {**{ours: spec[theirs] for ours, theirs in keys.items()}, "definition": spec["definition"]}
        for spec in kubernetes
    ]


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
