"""A run's folder is renamed, or moved to the trash, from its page; a run that holds it is never moved."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx2
import pytest

from quintain.errors import ConfigError
from quintain_runner.files import exclusive_lock
from quintain_runner.results.store import open_results
from quintain_view.folders import RunFolders
from support.results_folder import graded_row, sample_trajectory, write_results
from support.view_client import pages_of


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_results(tmp_path / "runs" / "one", [graded_row("1", 1.0)])
    return tmp_path / "runs"


@pytest.fixture
async def client(runs: Path) -> AsyncIterator[httpx2.AsyncClient]:
    async with pages_of(runs) as client:
        yield client


async def post(client: httpx2.AsyncClient, run: str, **fields: str) -> httpx2.Response:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    return await client.post(f"/run/{quote(run, safe='')}/move", content=urlencode(fields), headers=headers)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "host", ["127.0.0.1:80@evil.example", "evil.example", "[::1", "127.0.0.1:x", "", "a@localhost"]
)
async def test_a_page_under_another_name_is_not_answered(client: httpx2.AsyncClient, host: str) -> None:
    assert (await client.get("/run/one", headers={"host": host})).status_code == 421
    assert (await client.get("/run/one", headers={"host": "[::1]:8600"})).status_code != 421


async def test_a_deleted_run_is_in_the_trash_with_all_that_was_in_it(client: httpx2.AsyncClient, runs: Path) -> None:
    await client.get("/run/one")
    held = {*names_in(runs / "one"), ".lock"}
    assert (await client.get("/run/one/move")).status_code == 200
    assert names_in(runs) == ["one"], "it is only asked"
    told = await post(client, "one", delete="yes")
    (moved,) = (runs / ".trash").glob("*/one")
    assert (told.status_code, str(moved) in told.text) == (200, True)
    assert set(names_in(moved)) == held
    assert (await client.get("/run/one")).status_code == 404
    assert "/run/one" not in (await client.get("/")).text
    assert (await post(client, "one", delete="yes")).status_code == 404


NO_NAMES = ["", ".", "..", ".hidden", "a/b", "../one", "/tmp/x", "taken", "one", " one"]


@pytest.mark.parametrize("name", [*NO_NAMES, "a\nb", "a\0b", "\u202eeno", "ä" * 101])
async def test_a_name_that_is_none_is_refused(client: httpx2.AsyncClient, runs: Path, name: str) -> None:
    (runs / "taken").mkdir()
    refused = await post(client, "one", to=name)
    assert (refused.status_code, 'role="alert"' in refused.text) == (409, True)
    assert [names_in(runs), names_in(runs / "taken")] == [["one", "taken"], []]


async def test_only_a_form_of_these_pages_moves_a_run(client: httpx2.AsyncClient, runs: Path) -> None:
    assert (await post(client, "one")).status_code == 200
    asked = await client.request("GET", "/run/one/move", content="delete=yes")
    assert (asked.status_code, names_in(runs)) == (200, ["one"])
    client.headers["origin"] = "http://evil.example"
    assert (await post(client, "one", delete="yes")).status_code == 403
    assert names_in(runs) == ["one"]


async def test_a_run_that_is_going_on_stays_where_it_is(client: httpx2.AsyncClient, runs: Path) -> None:
    async with open_results(runs / "one"):
        assert (await post(client, "one", delete="yes")).status_code == 409
    with exclusive_lock(runs / "one", runs / "one" / ".lock"):
        refused = await post(client, "one", to="two")
        assert (refused.status_code, str(runs / "one") in refused.text) == (409, True)
    with sample_trajectory(runs / "attack"):
        assert (await post(client, "attack", delete="yes")).status_code == 409
    assert names_in(runs) == ["attack", "one"]
    assert (await post(client, "attack", delete="yes")).status_code == 200


@pytest.mark.parametrize("record", ['{"schemaVersion": 99}', '{"schemaVersion"', ""])
async def test_what_cannot_be_read_says_why_and_can_be_deleted(
    client: httpx2.AsyncClient, runs: Path, record: str
) -> None:
    (runs / "one" / "run.json").write_text(record)
    listed = (await client.get("/")).text
    assert ("not readable" in listed, "/run/one/move" in listed) == (True, True)
    assert (await post(client, "one", delete="yes")).status_code == 200
    assert names_in(runs) == [".trash"]


async def test_nothing_is_moved_through_a_link(client: httpx2.AsyncClient, runs: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    write_results(elsewhere / "real", [graded_row("1", 1.0)])
    (runs / "link").symlink_to(elsewhere / "real")
    assert (await post(client, "real", delete="yes")).status_code == 409
    (runs / ".trash").symlink_to(elsewhere)
    assert (await post(client, "one", delete="yes")).status_code == 409
    assert [names_in(elsewhere), names_in(runs)] == [["real"], [".trash", "link", "one"]]


def test_a_folder_in_which_the_server_works_is_not_moved(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs / "one")
    for folder in (Path(), runs / "one", Path("..") / "one"):
        with pytest.raises(ConfigError, match="was started in it"):
            RunFolders([]).move(folder, None)


async def test_a_run_that_waits_for_the_lock_gets_no_old_folder(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has opened the folder before the move, and asks for the lock after it."""
    opened = os.open

    def moved_meanwhile(path: str | Path, *flags: int) -> int:
        descriptor = opened(path, *flags)
        monkeypatch.undo()
        RunFolders([]).move(runs / "one", "two")
        return descriptor

    monkeypatch.setattr("quintain_runner.files.os.open", moved_meanwhile)
    with pytest.raises(ConfigError, match="it was renamed"):
        async with open_results(runs / "one"):
            pass
    assert names_in(runs) == ["two"]
