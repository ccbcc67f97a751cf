"""The site's pages: those made from the code name all that the recorded snapshots have, and every link leads somewhere.

`make docs` builds the site with a strict builder, which also checks links to headings.
"""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from generate import checkout, environment, lifecycle, site
from generate.checkout import REPOSITORY, tracked
from quintain.settings import environment as environment_variables
from quintain_metadata.ledger.lifecycle import CallState
from support.snapshots import RECORD_VARIABLE

RECORDED = REPOSITORY / "tests" / "unit" / "snapshots" / "recorded"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every source of the site."""
    folder = tmp_path_factory.mktemp("pages")
    site.collect(folder)
    return folder


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text())


def missing(page: Path, words: list[str]) -> list[str]:
    """The words that a page does not have as code, alone or with more in it."""
    codes = " ".join(re.findall(r"`([^`]+)`", page.read_text()))
    return [word for word in words if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", codes)]


def keys_of(schema: Any) -> Iterator[str]:
    """The names of all properties in a JSON schema, at any depth."""
    if isinstance(schema, dict):
        properties = schema.get("properties")
        yield from properties if isinstance(properties, dict) else ()
        for value in schema.values():
            yield from keys_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keys_of(value)


def test_every_command_has_a_section_with_all_its_options(pages: Path) -> None:
    text = (pages / "reference/commands.md").read_text()
    sections = dict(re.findall(r"^## (quintain [^\n]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    groups = {"quintain", *(name.rpartition(" ")[0] for name in recorded("commands") if name.count(" ") == 2)}
    assert set(sections) == set(recorded("commands")) - groups
    for name, section in sections.items():
        options = [word for names in recorded("commands")[name] for word in names.split() if word[0] == "-"]
        assert [word for word in options if f"`{word}" not in section and f", {word}" not in section] == [], name


def words_of_pages() -> dict[str, set[str]]:
    """What is recorded of the code, by the page that has to name it."""
    errors = recorded("errors")
    faults = {name: one["code"] for name, one in errors["faults"].items() if name != "Fault"}
    suffixes = {"counter": "_total", "info": "_info"}
    metrics = [one for service in recorded("metrics").values() for one in service]
    return {
        "reference/evaluation-file.md": {*keys_of(recorded("evaluation_schema"))},
        "reference/configuration-file.md": {*keys_of(recorded("config_schema"))} - {"name", "targets"},
        "reference/environment.md": {*environment.MEANINGS},
        "reference/errors.md": {*faults, *faults.values(), *errors["bases"]} - {"Fault"},
        "reference/metrics.md": {one["name"] + suffixes.get(one["type"], "") for one in metrics},
    }


def test_each_page_names_all_that_is_recorded(pages: Path) -> None:
    words = words_of_pages()
    assert all(words.values())
    assert {page: lacks for page, named in words.items() if (lacks := missing(pages / page, sorted(named)))} == {}


def test_every_exit_code_has_a_row(pages: Path) -> None:
    codes = recorded("exit_codes")
    numbers = {*map(str, codes["of a command"]), *map(str, codes["of an error"].values())}
    page = (pages / "reference/exit-codes.md").read_text()
    assert numbers <= {*re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}


def test_every_key_has_a_meaning(pages: Path) -> None:
    for name in ("evaluation", "configuration"):
        rows = re.findall(
            r"^\| `([^`]+)` \| [^|]+ \| ([^|]*) \|", (pages / f"reference/{name}-file.md").read_text(), re.MULTILINE
        )
        # The meanings of a call's settings are in the table of parameters of docs/protocol/fields.md.
        without = {key for key, meaning in rows if not meaning.strip()} - {"provider", "builtin"}
        assert without <= set(recorded("config_schema")["$defs"]["TargetSettings"]["properties"])


def test_every_variable_that_is_read_has_a_meaning() -> None:
    read = {name for name in recorded("environment")["asked"] if not name.startswith("QUINTAIN_TEST_")}
    variables = {name for name in read if name.removesuffix("_FILE") not in read - {name}}
    assert variables == set(environment.MEANINGS)


def test_the_picture_of_a_call_has_every_state_and_every_event_that_moves_it() -> None:
    assert set(lifecycle.PLACES) == set(CallState)
    labels = re.findall(r">([^<>\n]+)</(?:text|tspan)>", lifecycle.picture())
    assert len(labels) == len(CallState) + sum(len(events) for events in lifecycle.edges().values())


def test_the_page_of_reliability_shows_that_picture() -> None:
    kept = REPOSITORY / "docs" / "pictures" / "call.svg"
    if environment_variables().get(RECORD_VARIABLE):
        kept.write_text(lifecycle.picture())
    assert kept.read_text() == lifecycle.picture()
    assert "](pictures/call.svg)" in (REPOSITORY / "docs" / "reliability.md").read_text()


@pytest.mark.parametrize("has_git", [True, False], ids=["with git", "in an archive"])
def test_what_commands_leave_in_a_checkout_is_no_file_of_it(
    has_git: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout, "REPOSITORY", tmp_path)
    for name in ("ours/a.py", "quintain-demo/bot.py", "ours/runs/eval/b.py", ".gitignore"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("runs/\nquintain-demo/\n")
    if has_git:
        for words in (["init", "-q"], ["add", "."]):
            subprocess.run(["git", *words], cwd=tmp_path, check=True)
        (tmp_path / "notes.py").touch()
    assert checkout.tracked("**/*.py") == [tmp_path / "ours" / "a.py"]
    copied = checkout.copy_tracked(tmp_path / "ours", tmp_path / "copy")
    assert [path.name for path in copied.rglob("*")] == ["a.py"]


def navigation(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            yield from navigation(value) if isinstance(value, list) else [value]


def test_every_guide_and_every_generated_page_is_in_the_navigation(pages: Path) -> None:
    config = tomllib.loads((REPOSITORY / "docs" / "zensical.toml").read_text())
    named = list(navigation(config["project"]["nav"]))
    assert len(named) == len(set(named))
    assert [path for path in named if not (pages / path).is_file()] == []
    generated = {path for path in site.GENERATED if path.endswith(".md")}
    guides = {site.place_of(str(path.relative_to(REPOSITORY))) for path in tracked("docs/*.md", "docs/protocol/*.md")}
    assert guides | generated <= set(named)


def test_every_link_leads_to_a_file_of_the_site(pages: Path) -> None:
    broken = []
    for page in pages.rglob("*.md"):
        text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)\s:#]+)[)#]", re.sub(r"`[^`\n]*`", "", text)):
            folder = posixpath.dirname(str(page.relative_to(pages)))
            if not (pages / posixpath.normpath(posixpath.join(folder, link))).is_file():
                broken.append(f"{page.relative_to(pages)}: {link}")
    assert broken == []
