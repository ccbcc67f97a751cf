"""The schemas that rendered objects are held against: Kubernetes' own, and those of operators where they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

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
