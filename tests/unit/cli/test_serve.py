"""What the commands that start services do beside starting them."""

from __future__ import annotations

import importlib
from collections.abc import Coroutine
from pathlib import Path

import pytest

from quintain_cli.commands.serve_host import HostOptions, ProcessUse


def close_coroutine(coroutine: Coroutine[object, object, object], **_: object) -> None:
    coroutine.close()


@pytest.mark.parametrize("service", ["metadata", "gateway", "worker"])
def test_services_that_run_no_code_of_others_keep_large_blocks_out_of_the_heap(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: list[bool] = []
    module = importlib.import_module(f"quintain_cli.commands.serve_{service}")
    monkeypatch.setattr(module, "map_large_blocks", lambda: mapped.append(True), raising=service != "worker")
    monkeypatch.setattr(module, "set_up_logging", lambda **_: None)
    monkeypatch.setattr(module, "run_command", close_coroutine)
    getattr(module, f"serve_{service}")()
    assert mapped == [True] * (service != "worker")


@pytest.mark.parametrize(("depends_on", "is_told"), [((), True), (("rules.txt",), False)])
def test_a_host_says_what_of_its_factorys_module_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depends_on: tuple[str, ...], *, is_told: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unseen_bot.py").write_text("import sys\nsys.path.append('lib')\n")
    options = HostOptions(
        factory_reference="unseen_bot:Bot",
        name="bot",
        slots=1,
        isolation=None,
        process=ProcessUse.PER_SLOT,
        grace_seconds=1,
        boot_seconds=1,
        env_from=(),
        env=(),
        depends_on=depends_on,
    )
    assert ["--depends-on" in line for line in options.unseen_imports()] == [True] * is_told
