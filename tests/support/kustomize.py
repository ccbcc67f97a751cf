"""Kustomize, as far as our own files use it, for a machine that has none; a word it does not know is refused.

It is no other kustomize: `test_kustomize.py` holds it against the real one wherever that is on the PATH.
"""

from __future__ import annotations

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


class UnsupportedKustomization(Exception):
    """Something the real kustomize may know and this one does not."""


def render(folder: Path) -> list[Object]:
    """The objects of this folder's kustomization. Raises `UnsupportedKustomization`."""
    objects, generated = _collect(folder)
    for one in generated:
        _suffix(one, objects)
    return objects


def _collect(folder: Path) -> tuple[list[Object], list[Object]]:
    """All objects, and those of them that were generated here or further down."""
    (kustomization,) = documents(folder / "kustomization.yaml")
    require_known_keys(kustomization, KNOWN, folder)
    generated = [_config_map(folder, each) for each in kustomization.get("configMapGenerator", [])]
    objects = list(generated)
    for path in kustomization.get("resources", []):
        more, made = _resource(folder, path)
        objects += more
        generated += made
    for labels in kustomization.get("labels", []):
        require_known_keys(labels, {"pairs", "includeTemplates"}, folder)
        for one in objects:
            _label(one, labels["pairs"], templates=labels.get("includeTemplates", False))
    for image in kustomization.get("images", []):
        require_known_keys(image, {"name", "newName", "newTag"}, folder)
        for container in (each for one in objects for each in containers(one)):
            _retag(container, image)
    if "namespace" in kustomization:
        for one in objects:
            one["metadata"]["name" if one["kind"] == "Namespace" else "namespace"] = kustomization["namespace"]
    return objects, generated


def documents(path: Path) -> list[Object]:
    """The YAML documents of a file."""
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


def require_known_keys(given: Object, known: set[str], path: Path) -> None:
    """Raise `UnsupportedKustomization` for a key that is not known."""
    if unknown := set(given) - known:
        raise UnsupportedKustomization(f"{path}: {', '.join(sorted(unknown))}: not known here; kustomize may know it")


def containers(one: Object) -> list[Object]:
    """The containers of a workload's pods."""
    if one["kind"] not in WORKLOADS:
        return []
    pod = one["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


def _resource(folder: Path, path: str) -> tuple[list[Object], list[Object]]:
    if (folder / path).is_dir():
        return _collect(folder / path)
    return documents(file_inside(folder, path)), []


def file_inside(folder: Path, path: str) -> Path:
    """A file of this folder. Raises `UnsupportedKustomization` for one of another, as kustomize does."""
    if folder.resolve() not in (folder / path).resolve().parents:
        raise UnsupportedKustomization(f"{folder}: {path}: kustomize takes no file from outside its folder")
    return folder / path


def _label(one: Object, pairs: dict[str, str], *, templates: bool) -> None:
    metadata_maps = [one["metadata"]]
    if templates and one["kind"] in WORKLOADS:
        metadata_maps.append(one["spec"]["template"]["metadata"])
    for metadata in metadata_maps:
        metadata["labels"] = metadata.get("labels", {}) | pairs


def _retag(container: Object, image: Object) -> None:
    name, _, tag = container["image"].partition(":")
    if name == image["name"]:
        container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag or 'latest')}"


def _config_map(folder: Path, generator: Object) -> Object:
    require_known_keys(generator, {"name", "files"}, folder)
    data = {Path(path).name: file_inside(folder, path).read_text() for path in generator["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data}


def _suffix(made: Object, objects: list[Object]) -> None:
    """Give a generated object a name that changes with its content, wherever a volume names it."""
    name = made["metadata"]["name"]
    hashed = {"kind": made["kind"], "name": "", "data": made["data"]}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for sign in "<>&":  # as Go writes JSON
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    made["metadata"]["name"] = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10].translate(_LETTERS)}"
    for one in objects:
        if one["kind"] in WORKLOADS:
            for volume in one["spec"]["template"]["spec"].get("volumes", []):
                if volume.get("configMap", {}).get("name") == name:
                    volume["configMap"]["name"] = made["metadata"]["name"]
