"""What is rendered is what kustomize renders, and what the small renderer does not know it refuses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from support.kustomize import UnsupportedKustomization, by_identity, render

KUBERNETES = Path(__file__).parents[3] / "deploy" / "kubernetes"

#: The real one, by either of its names.
REAL = next(
    (command for command in (["kustomize", "build"], ["kubectl", "kustomize"]) if shutil.which(command[0])), None
)


@pytest.mark.skipif(
    REAL is None, reason="neither kustomize nor kubectl is on the PATH: the small renderer is on its own"
)
@pytest.mark.parametrize("folder", ["base", "overlays/example"])
def test_the_small_renderer_says_what_kustomize_says(folder: str) -> None:
    assert REAL is not None
    real = subprocess.run([*REAL, str(KUBERNETES / folder)], capture_output=True, text=True, check=True, timeout=60)
    assert real.stderr == "", "a warning: something in our files is going out of use"
    assert by_identity(render(KUBERNETES / folder)) == by_identity(list(yaml.safe_load_all(real.stdout)))


def kustomization(folder: Path, text: str) -> Path:
    (folder / "kustomization.yaml").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("patches: [{path: patch.yaml}]", "patches"),
        ("labels: [{pairs: {a: b}, includeSelectors: true}]", "includeSelectors"),
        ("configMapGenerator: [{name: a, literals: [b=c]}]", "literals"),
        ("images: [{name: a, digest: 'sha256:00'}]", "digest"),
    ],
)
def test_what_it_does_not_know_is_refused(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(UnsupportedKustomization, match=word):
        render(kustomization(tmp_path, text))


def test_a_file_from_outside_the_folder_is_refused_as_kustomize_does(tmp_path: Path) -> None:
    (tmp_path / "outside.yaml").write_text("kind: Secret")
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises(UnsupportedKustomization, match="outside"):
        render(kustomization(inner, "resources: [../outside.yaml]"))
