"""The code blocks of README.md and docs: what a reader copies is correct.

Python is compiled, and its imports of Quintain are run; YAML is read as the file that it is; JSON is parsed. Shell
commands are those of tests/test_house.py, and ``text`` is output or a picture. A block that is none of this has an HTML
comment in the line before it: ``<!-- not checked: the reason -->``.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from generate.checkout import REPOSITORY, tracked
from quintain.config.loader import load_config
from quintain_runner.spec.evaluation import load_evaluation

PAGES = tracked("README.md", "docs/*.md", "docs/protocol/*.md")

_BLOCK = re.compile(
    r"(?:^ *<!-- not checked: (?P<reason>[^\n]+?) -->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``reason`` says why it is not checked."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, without the indent of the list that they are in."""
    text = page.read_text()
    found = []
    for match in _BLOCK.finditer(text):
        indent = match["indent"]
        lines = "".join(line.removeprefix(indent) for line in match["text"].splitlines(keepends=True))
        number = text[: match.start("indent")].count("\n") + 1
        found.append(Block(page.name, number, match["language"], lines, match["reason"]))
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
CHECKED = [block for block in BLOCKS if block.reason is None]


def in_language(language: str) -> list[Block]:
    """The blocks of a language that have to be right."""
    return [block for block in CHECKED if block.language == language]


def test_every_block_is_found_and_in_a_language_that_is_checked() -> None:
    assert sum(page.read_text().count("```") for page in PAGES) == 2 * len(BLOCKS)
    assert [str(block) for block in CHECKED if block.language not in {"python", "yaml", "json", "sh", "text"}] == []


@pytest.mark.parametrize("block", in_language("python"), ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("block", in_language("python"), ids=str)
def test_what_python_imports_of_quintain_is_there(block: Block) -> None:
    imports = [
        node
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("quintain")
        # It needs superred, which is no dependency; tests/superred imports it where that is installed.
        if node.module != "quintain.superred"
    ]
    for node in imports:
        exec(ast.unparse(node), {})


@pytest.mark.parametrize("block", in_language("json"), ids=str)
def test_json_parses(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", in_language("yaml"), ids=str)
def test_yaml_is_a_file_that_quintain_reads(block: Block, tmp_path: Path) -> None:
    content = yaml.safe_load(block.text)
    path = tmp_path / "file.yaml"
    path.write_text(block.text)
    for name in re.findall(r"file://(\S+?)[\s,}]", block.text):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('[{"role": "user", "content": "x"}]')
    assert isinstance(content, dict)
    if "graders" in content:
        load_evaluation(path)
    else:
        load_config(path)


@pytest.mark.timeout(600)  # where nobody has checked the library's types before, on a machine with much to do
def test_the_graders_that_the_page_shows_are_typed(tmp_path: Path) -> None:
    graders = [block for block in in_language("python") if block.page == "graders.md"]
    assert graders
    for number, block in enumerate(graders):
        (tmp_path / f"block_{number}.py").write_text(block.text)
    # The repository's cache holds the library's types; checking them again takes twenty seconds.
    command = [sys.executable, "-m", "mypy", "--strict", *map(str, sorted(tmp_path.glob("*.py")))]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
