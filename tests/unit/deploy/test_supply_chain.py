"""The bill of materials names what is installed for users, and the audit never fails because nobody answers."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

DEPLOY = Path(__file__).parents[3] / "deploy"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"deploy_{name}", DEPLOY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_bill_of_materials_has_every_package_of_a_user_and_none_of_a_developer() -> None:
    printed = subprocess.run([sys.executable, str(DEPLOY / "sbom.py")], capture_output=True, check=True).stdout
    document = json.loads(printed)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["name"] == "quintain"
    names = {component["name"] for component in document["components"]}
    assert names >= {
        "aio-pika",
        "aiormq",
        "pydantic-core",
        "asyncpg",
        "aiohttp",
        "opentelemetry-sdk",
        "pydantic-ai-slim",
    }
    assert names & {"pytest", "ruff", "mypy", "pip-audit", "openai", "anthropic"} == set()
    lock = (DEPLOY.parent / "requirements.lock").read_text()
    for component in document["components"]:
        assert component["hashes"], component["name"]
        for each in component["hashes"]:
            assert each["alg"] == "SHA-256"
            pinned = lock.index(f"\n{component['name']}=={component['version']} ")
            assert pinned < lock.index(f"sha256:{each['content']}") < lock.index("# via", pinned)
    references = {component["bom-ref"] for component in document["components"]}
    assert len(references) == len(names)
    for dependency in document["dependencies"]:
        assert set(dependency["dependsOn"]) <= references


def test_an_audit_that_nobody_answers_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = load("audit")

    def run(*_: object, **options: object) -> subprocess.CompletedProcess[bytes]:
        raise subprocess.TimeoutExpired([], 1)

    monkeypatch.setattr(audit.subprocess, "run", run)
    assert audit.main([]) == 0
    assert "not looked up" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("printed", "arguments", "code"),
    [
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', [], 0),
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "X", "fix_versions": ["2"]}]}]}', [], 1),
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "X"}]}]}', ["--report"], 0),
        ("no JSON", [], 0),
    ],
)
def test_only_what_is_found_fails(
    monkeypatch: pytest.MonkeyPatch, printed: str, arguments: list[str], code: int
) -> None:
    audit = load("audit")

    def run(*_: object, **__: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess([], 1, printed.encode(), b"")

    monkeypatch.setattr(audit.subprocess, "run", run)
    assert audit.main(arguments) == code
