"""What the commands that start services do beside starting them."""

from __future__ import annotations

from collections.abc import Coroutine
from types import ModuleType

import pytest

from quintain_cli.commands import serve, serve_gateway


def close_coroutine(coroutine: Coroutine[object, object, object], **_: object) -> None:
    coroutine.close()


@pytest.mark.parametrize(
    ("module", "command", "is_mapping"),
    [(serve, "serve_metadata", True), (serve_gateway, "serve_gateway", True), (serve, "serve_worker", False)],
    ids=["metadata", "gateway", "worker"],
)
def test_services_that_run_no_code_of_others_keep_large_blocks_out_of_the_heap(
    module: ModuleType, command: str, is_mapping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: list[bool] = []
    monkeypatch.setattr(module, "map_large_blocks", lambda: mapped.append(True))
    monkeypatch.setattr(module, "set_up_logging", lambda **_: None)
    monkeypatch.setattr(module, "run_command", close_coroutine)
    getattr(module, command)()
    assert mapped == [True] * is_mapping
