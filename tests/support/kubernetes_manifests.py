"""What deploy/kubernetes asks a cluster for, rendered once, and ways to look at it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from support.kustomize import WORKLOADS, Object, containers, render

REPOSITORY = Path(__file__).parents[2]
KUBERNETES = REPOSITORY / "deploy" / "kubernetes"
EXAMPLE = KUBERNETES / "overlays" / "example"

#: The pods that the RabbitMQ cluster operator makes of the cluster `rabbitmq`.
BROKER_PODS = {"app.kubernetes.io/name": "rabbitmq", "app.kubernetes.io/component": "rabbitmq"}

#: The pods that are somebody else's: they say by this label that they may call.
EXTERNAL_CLIENTS = {"app.kubernetes.io/component": "evaluator"}


@cache
def objects() -> list[Object]:
    """All of the example overlay, and so all of the base."""
    return render(EXAMPLE)


@cache
def monitors() -> list[Object]:
    """What the overlay for the Prometheus Operator adds."""
    return render(KUBERNETES / "overlays" / "monitoring")


def objects_of_kind(*kinds: str) -> list[Object]:
    return [each for each in objects() if each["kind"] in kinds]


def names_of_kind(kind: str) -> set[str]:
    return {each["metadata"]["name"] for each in objects_of_kind(kind)}


def object_named(kind: str, name: str) -> Object:
    (one,) = [each for each in objects_of_kind(kind) if each["metadata"]["name"] == name]
    return one


@cache
def generated_secrets() -> dict[str, dict[str, str]]:
    """What make_secrets.py makes: the data of each Secret, by its name."""
    return {each["metadata"]["name"]: each["stringData"] for each in printed_secrets()}


def printed_secrets(*options: str) -> list[Object]:
    """What make_secrets.py prints."""
    command = [sys.executable, str(KUBERNETES / "make_secrets.py"), *options]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    items: list[Object] = json.loads(printed)["items"]
    return items


@dataclass(frozen=True)
class Workload:
    """Something that makes pods."""

    name: str
    spec: Object
    labels: dict[str, str]
    pod: Object

    @property
    def container(self) -> Object:
        """The one container that each of ours has."""
        (only,) = containers({"kind": "Deployment", "spec": self.spec})
        return only

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    @property
    def environment(self) -> dict[str, str]:
        return {each["name"]: each["value"] for each in self.container["env"]}

    def option(self, name: str) -> str:
        """The value of an option of its command line."""
        args: list[str] = self.container["args"]
        return args[args.index(name) + 1]


def workloads() -> list[Workload]:
    """Everything that makes pods, but the broker, which its operator makes."""
    return [
        Workload(
            each["metadata"]["name"],
            each["spec"],
            each["spec"]["template"]["metadata"]["labels"],
            each["spec"]["template"]["spec"],
        )
        for each in objects_of_kind(*WORKLOADS)
    ]


def services() -> list[Workload]:
    """Those of them that are ours."""
    return [each for each in workloads() if each.container["image"].startswith("quintain-")]


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def values_of_key(tree: Any, key: str) -> Iterator[Any]:
    """Everything under this key, at any depth."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            if name == key:
                yield value
            yield from values_of_key(value, key)
    elif isinstance(tree, list):
        for each in tree:
            yield from values_of_key(each, key)
