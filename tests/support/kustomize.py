"""Kustomize, as far as our own files use it, for a machine that has none; a word it does not know is refused.

It is no other kustomize: `test_kustomize.py` holds it against the real one wherever that is on the PATH.
"""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

KNOWN = {"apiVersion", "kind", "namespace", "resources", "labels", "configMapGenerator", "images"}

#: The kinds whose pods are made from `spec.template`.
WORKLOADS = {"Deployment", "StatefulSet", "DaemonSet"}

#: How kustomize writes a hexadecimal digest, so that no hash spells a word.
_LETTERS = str.maketrans("013ae", "ghkmt")


class Refused(Exception):
    """Something the real kustomize may know and this one does not."""


def render(folder: Path) -> list[Object]:
    """The objects of this folder's kustomization. Raises `Refused`."""
    objects, generated = _gathered(folder)
    for one in generated:
        _suffix(one, objects)
    return objects


def _gathered(folder: Path) -> tuple[list[Object], list[Object]]:
    """All objects, and those of them that were generated here or further down."""
    (wanted,) = documents(folder / "kustomization.yaml")
    only(wanted, KNOWN, folder)
    generated = [_config_map(folder, each) for each in wanted.get("configMapGenerator", [])]
    objects = list(generated)
    for path in wanted.get("resources", []):
        more, made = _resource(folder, path)
        objects += more
        generated += made
    for labels in wanted.get("labels", []):
        only(labels, {"pairs", "includeTemplates"}, folder)
        for one in objects:
            _label(one, labels["pairs"], templates=labels.get("includeTemplates", False))
    for image in wanted.get("images", []):
        only(image, {"name", "newName", "newTag"}, folder)
        for container in (each for one in objects for each in containers(one)):
            _retag(container, image)
    if "namespace" in wanted:
        for one in objects:
            one["metadata"]["name" if one["kind"] == "Namespace" else "namespace"] = wanted["namespace"]
    return objects, generated


def documents(path: Path) -> list[Object]:
    """The YAML documents of a file."""
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


def only(given: Object, known: set[str], where: Path) -> None:
    """Raise `Refused` for a key that is not known."""
    if unknown := set(given) - known:
        raise Refused(f"{where}: {', '.join(sorted(unknown))}: not known here; kustomize may know it")


def containers(one: Object) -> list[Object]:
    """The containers of a workload's pods."""
    if one["kind"] not in WORKLOADS:
        return []
    pod = one["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


def _resource(folder: Path, path: str) -> tuple[list[Object], list[Object]]:
    if (folder / path).is_dir():
        return _gathered(folder / path)
    return documents(inside(folder, path)), []


def inside(folder: Path, path: str) -> Path:
    """A file of this folder. Raises `Refused` for one of another, as kustomize does."""
    if folder.resolve() not in (folder / path).resolve().parents:
        raise Refused(f"{folder}: {path}: kustomize takes no file from outside its folder")
    return folder / path


def _label(one: Object, pairs: dict[str, str], *, templates: bool) -> None:
    places = [one["metadata"]]
    if templates and one["kind"] in WORKLOADS:
        places.append(one["spec"]["template"]["metadata"])
    for place in places:
        place["labels"] = place.get("labels", {}) | pairs


def _retag(container: Object, image: Object) -> None:
    name, _, tag = container["image"].partition(":")
    if name == image["name"]:
        container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag or 'latest')}"


def _config_map(folder: Path, wanted: Object) -> Object:
    only(wanted, {"name", "files"}, folder)
    data = {Path(path).name: inside(folder, path).read_text() for path in wanted["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": wanted["name"]}, "data": data}


def _suffix(made: Object, objects: list[Object]) -> None:
    """Give a generated object a name that changes with its content, wherever a volume names it."""
    plain = made["metadata"]["name"]
    hashed = {"kind": made["kind"], "name": "", "data": made["data"]}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for sign in "<>&":  # as Go writes JSON
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    made["metadata"]["name"] = f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:10].translate(_LETTERS)}"
    for one in objects:
        if one["kind"] in WORKLOADS:
            for volume in one["spec"]["template"]["spec"].get("volumes", []):
                if volume.get("configMap", {}).get("name") == plain:
                    volume["configMap"]["name"] = made["metadata"]["name"]


def same(objects: list[Object]) -> dict[tuple[str, str, str], Object]:
    """Objects by kind, group and name: their order means nothing."""
    return {(each["apiVersion"], each["kind"], each["metadata"]["name"]): copy.deepcopy(each) for each in objects}
