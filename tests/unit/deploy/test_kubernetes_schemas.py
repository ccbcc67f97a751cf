"""Every object is one that its API takes: Kubernetes' own kinds always, the operators' where schemas are given."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from support.kubernetes_manifests import monitors, object_named, objects
from support.kustomize import Object

#: A folder of CustomResourceDefinitions as their projects publish them. No package registry has them.
CRDS_VARIABLE = "QUINTAIN_TEST_CRDS"


def crd_schemas(folder: Path) -> dict[tuple[str, str], Object]:
    """The schemas of the definitions in this folder, by apiVersion and kind; an unknown field is a mistake."""
    found = {}
    for path in sorted(folder.rglob("*.yaml")):
        for each in yaml.safe_load_all(path.read_text()):
            if each and each["kind"] == "CustomResourceDefinition":
                for version in each["spec"]["versions"]:
                    schema = strict_schema(version["schema"]["openAPIV3Schema"])
                    schema["properties"]["metadata"] = {}
                    found[f"{each['spec']['group']}/{version['name']}", each["spec"]["names"]["kind"]] = schema
    return found


def strict_schema(schema: Any) -> Any:
    """The schema as a strict API server reads it: what has properties has no others."""
    if isinstance(schema, list):
        return [strict_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: strict_schema(value) for key, value in schema.items()}
    if strict.get("x-kubernetes-int-or-string") is True:
        strict.pop("type", None)
    if isinstance(strict.get("properties"), dict) and not strict.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    return strict


def schema_errors(one: Object, schema: Object) -> list[str]:
    """What the schema holds against this object."""
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(one)]


#: The newest whose schemas there are, and the one two releases before: as far back as Kubernetes mends anything.
KUBERNETES_VERSIONS = ("1.35", "1.37")

#: Whose schemas no package registry has: as their projects publish them, in the folder that the variable names.
OPERATORS = ("keda.sh/", "monitoring.coreos.com/", "rabbitmq.com/")

OURS = [each for each in [*objects(), *monitors()] if each["apiVersion"].startswith(OPERATORS)]
THEIRS = [each for each in objects() if each not in OURS]


def which(one: Object) -> str:
    return f"{one['kind']}-{one['metadata']['name']}"


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("one", THEIRS, ids=which)
def test_kubernetes_takes_it(one: Object, version: str) -> None:
    assert kubernetes_validate.validate(one, version, strict=True).startswith(version)


def test_kubernetes_would_not_take_a_field_that_it_does_not_know() -> None:
    wrong = copy.deepcopy(object_named("Deployment", "worker"))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(wrong, KUBERNETES_VERSIONS[-1], strict=True)


def test_the_kinds_that_kubernetes_does_not_have_are_the_operators() -> None:
    assert {(each["apiVersion"], each["kind"]) for each in OURS} == {
        ("keda.sh/v1alpha1", "ScaledObject"),
        ("keda.sh/v1alpha1", "TriggerAuthentication"),
        ("monitoring.coreos.com/v1", "PodMonitor"),
        ("rabbitmq.com/v1beta1", "Permission"),
        ("rabbitmq.com/v1beta1", "Policy"),
        ("rabbitmq.com/v1beta1", "RabbitmqCluster"),
        ("rabbitmq.com/v1beta1", "User"),
        ("rabbitmq.com/v1beta1", "Vhost"),
    }


@pytest.mark.skipif(
    CRDS_VARIABLE not in os.environ,
    reason=f"NOT SCHEMA-CHECKED: RabbitmqCluster, User, Vhost, Permission, Policy, ScaledObject, "
    "TriggerAuthentication, PodMonitor: "
    f"no package registry has their schemas; {CRDS_VARIABLE} names a folder of the operators' "
    "CustomResourceDefinitions",
)
def test_the_operators_take_it() -> None:
    schemas = crd_schemas(Path(os.environ[CRDS_VARIABLE]))
    found = {which(each): schema_errors(each, schemas[each["apiVersion"], each["kind"]]) for each in OURS}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_a_schema_that_is_given_is_used(tmp_path: Path) -> None:
    (tmp_path / "crd.yaml").write_text("""\
kind: CustomResourceDefinition
spec:
  group: rabbitmq.com
  names: {kind: RabbitmqCluster}
  versions:
    - name: v1beta1
      schema: {openAPIV3Schema: {properties: {spec: {properties: {replicas: {type: string}}}}}}
""")
    (schema,) = crd_schemas(tmp_path).values()
    wrong = schema_errors({"spec": {"replicas": 3, "replica": 1}}, schema)
    assert len(wrong) == 2, wrong
