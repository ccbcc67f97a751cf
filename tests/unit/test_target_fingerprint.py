"""The fingerprint of a target: whatever can change an answer changes it, and nothing else does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from quintain.config.fingerprint import target_fingerprints, unseen_warnings
from quintain.config.loader import load_config
from quintain.config.python_imports import command_imports
from quintain.errors import ConfigError

OPENAI = "provider: openai, model: a, base_url: 'http://h/v1', api_key: '${{ KEY }}'"
COMMAND = f"provider: command, command: ['{sys.executable}', bot.py, '--brief']"
PYTHON = "provider: python, callable: 'bot:answer'"


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text("def answer(request): return 'a'")
    (tmp_path / "prompt.md").write_text("be brief")


def fingerprint(folder: Path, target: str, name: str = "bot", **env: str) -> str | None:
    """The fingerprint of a target of this configuration, in a folder with these files."""
    path = folder / "quintain.yaml"
    path.write_text(f"targets: {{{name}: {{{target}}}}}\n")
    environment = {"KEY": "k", "MODEL": "a", **env}
    config = load_config(path).resolve(environment)
    return target_fingerprints(config.targets, folder, environment)[name]()


def counts(folder: Path, target: str, name: str) -> bool:
    """Whether other bytes of a file make another target; with its own bytes it is the same again."""
    before, text = fingerprint(folder, target), (folder / name).read_text()
    (folder / name).write_text(f"{text}\n")
    is_another = fingerprint(folder, target) != before
    (folder / name).write_text(text)
    assert fingerprint(folder, target) == before
    return is_another


@pytest.mark.parametrize(
    ("target", "other"),
    [
        (OPENAI, OPENAI.replace("model: a", "model: b")),
        (OPENAI, f"{OPENAI}, temperature: 0.5"),
        (OPENAI, f"{OPENAI}, max_tokens: 5"),
        (OPENAI, f"{OPENAI}, api: responses"),
        (OPENAI, OPENAI.replace("//h/", "//other/")),
        (OPENAI, f"{OPENAI}, depends_on: [prompt.md]"),
        (COMMAND, COMMAND.replace("--brief", "--long")),
        (COMMAND, f"{COMMAND}, env: {{STYLE: brief}}"),
        (PYTHON, PYTHON.replace("answer", "reply")),
        ("provider: target, config: {a: '1'}", "provider: target, config: {a: '2'}"),
        ("provider: mock", "provider: mock, response: nothing"),
    ],
)
def test_what_can_change_an_answer_is_another_target(tmp_path: Path, target: str, other: str) -> None:
    assert fingerprint(tmp_path, target) != fingerprint(tmp_path, other)


@pytest.mark.parametrize(
    "more", ["max_concurrency: 2", "timeout_seconds: 3", "max_tries: 1", "judge_target: bot", "depends_on: []"]
)
def test_what_cannot_change_an_answer_is_the_same_target(tmp_path: Path, more: str) -> None:
    assert fingerprint(tmp_path, OPENAI) == fingerprint(tmp_path, f"{OPENAI}, {more}")


def test_a_secret_and_a_name_change_nothing_and_a_reference_counts_by_its_value(tmp_path: Path) -> None:
    assert fingerprint(tmp_path, OPENAI) == fingerprint(tmp_path, OPENAI, name="other", KEY="another")
    by_reference = OPENAI.replace("model: a", "model: '${{ MODEL }}'")
    assert fingerprint(tmp_path, OPENAI) == fingerprint(tmp_path, by_reference)
    assert fingerprint(tmp_path, OPENAI) != fingerprint(tmp_path, by_reference, MODEL="b")


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (COMMAND, "bot.py"),
        (PYTHON, "bot.py"),
        (f"{PYTHON}, depends_on: [prompt.md]", "prompt.md"),
        (f"{OPENAI}, depends_on: [prompt.md]", "prompt.md"),
    ],
)
def test_the_bytes_of_a_program_a_module_and_a_dependency_count(tmp_path: Path, target: str, name: str) -> None:
    assert counts(tmp_path, target, name)


def test_a_program_counts_by_its_bytes_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "moved.py").write_bytes((tmp_path / "bot.py").read_bytes())
    assert fingerprint(tmp_path, COMMAND) == fingerprint(tmp_path, COMMAND.replace("bot.py", "elsewhere/moved.py"))


def test_a_program_that_changes_while_it_is_served_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "quintain.yaml"
    path.write_text(f"targets: {{bot: {{{COMMAND}, depends_on: [prompt.md]}}}}\n")
    read = target_fingerprints(load_config(path).targets, tmp_path, {})["bot"]
    before = read()
    (tmp_path / "bot.py").write_text("print('another')")
    assert read() != before
    (tmp_path / "prompt.md").unlink()
    assert read() is None


@pytest.mark.parametrize("name", ["bot.py", "prompt.md"])
def test_what_the_processes_of_a_function_may_have_read_counts_as_it_was_and_as_it_is(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "quintain.yaml"
    path.write_text(f"targets: {{bot: {{{PYTHON}, depends_on: [prompt.md]}}}}\n")
    running = target_fingerprints(load_config(path).targets, tmp_path, {})["bot"]
    before, text = running(), (tmp_path / name).read_text()
    (tmp_path / name).write_text(f"{text}\n")
    restarted = target_fingerprints(load_config(path).targets, tmp_path, {})["bot"]
    assert len({before, running(), restarted()}) == 3
    (tmp_path / name).write_text(text)
    assert running() == before
    (tmp_path / name).unlink()
    assert running() is None


@pytest.mark.parametrize(
    ("target", "keys", "other"),
    [
        (OPENAI, "base_url", OPENAI.replace("//h/", "//other/")),
        (COMMAND, "command, cwd", COMMAND.replace("--brief", "--long")),
        (PYTHON, "callable", PYTHON.replace("answer", "reply")),
    ],
)
def test_replica_fields_may_differ_between_workers(tmp_path: Path, target: str, keys: str, other: str) -> None:
    exempt = f", replica_fields: [{keys}]"
    assert fingerprint(tmp_path, target + exempt) == fingerprint(tmp_path, other + exempt)
    assert fingerprint(tmp_path, target + exempt) != fingerprint(tmp_path, target)


@pytest.mark.parametrize("key", ["bass_url", "provider"])
def test_replica_fields_name_keys_of_the_target(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        fingerprint(tmp_path, f"{OPENAI}, replica_fields: [{key}]")


def test_a_dependency_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"targets\.bot\.depends_on: .*missing\.md: it cannot be read"):
        fingerprint(tmp_path, f"{OPENAI}, depends_on: [missing.md]")


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A program and a module that import neighbours in every way that a syntax tree shows, and those neighbours."""
    (tmp_path / "parts" / "deep").mkdir(parents=True)
    for name, code in {
        "bot.py": "import json, words\nfrom parts import style\ndef answer(request):\n    import lazy\n    return 'a'",
        "words.py": "import importlib\nmore = importlib.import_module('named')",
        "named.py": "import words",
        "lazy.py": "from parts.deep.below import *",
        "parts/__init__.py": "",
        "parts/style.py": "from . import tone\nfrom .deep import below",
        "parts/tone.py": "",
        "parts/deep/below.py": "from ..tone import none",
        "unused.py": "",
        "requests.py": "",
    }.items():
        (tmp_path / name).write_text(code)
    return tmp_path


BY_MODULE = COMMAND.replace("bot.py", "'-m', bot")
BY_CODE = COMMAND.replace("bot.py", "'-c', 'import bot'")


@pytest.mark.parametrize("target", [COMMAND, PYTHON, BY_MODULE, BY_CODE])
@pytest.mark.parametrize(
    "name",
    ["words.py", "named.py", "lazy.py", "parts/__init__.py", "parts/style.py", "parts/tone.py", "parts/deep/below.py"],
)
def test_what_a_python_entry_imports_from_its_folder_counts(modules: Path, target: str, name: str) -> None:
    assert counts(modules, target, name)
    assert not any(counts(modules, target, unused) for unused in ("unused.py", "requests.py"))


@pytest.mark.parametrize("name", ["parts/__init__.py", "parts/deep/__init__.py", "parts/tone.py"])
def test_the_packages_of_a_module_count(modules: Path, name: str) -> None:
    (modules / "parts" / "deep" / "__init__.py").write_text("from .. import tone")
    target = PYTHON.replace("bot:", "parts.deep.below:")
    (modules / "parts" / "deep" / "below.py").write_text("def answer(request): return 'a'")
    assert counts(modules, target, name)


def test_what_a_package_lists_counts_where_all_of_it_is_imported(modules: Path) -> None:
    (modules / "bot.py").write_text("from parts import *")
    (modules / "parts" / "__init__.py").write_text("__all__ = ['style']\n__all__ += ['tone', 'a_function']")
    assert {"parts.style", "parts.tone"} <= command_imports(["python", "bot.py"], modules, {}).files.keys()


@pytest.mark.parametrize(
    "code",
    [
        "import importlib as i; i.import_module(name='words')",
        "from importlib import import_module\ndef f(): import_module('words')",
        "import builtins; builtins.__import__('words')",
        "import runpy; runpy.run_module('words')",
    ],
)
def test_a_module_that_is_imported_by_a_function_counts(modules: Path, code: str) -> None:
    (modules / "bot").write_text(f"#!/usr/bin/env python3\n{code}")
    imports = command_imports(["./bot"], modules, {})
    assert ("words" in imports.files, imports.unread) == (True, [])


def test_a_module_that_appears_before_an_installed_one_counts(modules: Path) -> None:
    before = fingerprint(modules, COMMAND)
    (modules / "json.py").write_text("")
    assert fingerprint(modules, COMMAND) != before


@pytest.mark.parametrize("name", ["words.py", "lazy.py"])
def test_imports_of_a_function_count_as_its_module_does(modules: Path, name: str) -> None:
    path = modules / "quintain.yaml"
    path.write_text(f"targets: {{bot: {{{PYTHON}}}}}\n")
    running = target_fingerprints(load_config(path).targets, modules, {})["bot"]
    before = running()
    (modules / name).write_text("changed = True")
    restarted = target_fingerprints(load_config(path).targets, modules, {})["bot"]
    assert len({before, running(), restarted()}) == 3


@pytest.mark.parametrize("exempt", ["command", "callable"])
def test_imports_are_exempt_with_what_imports_them(modules: Path, exempt: str) -> None:
    target = f"{COMMAND if exempt == 'command' else PYTHON}, replica_fields: [{exempt}]"
    assert not counts(modules, target, "words.py")


def test_a_folder_of_pythonpath_counts(modules: Path) -> None:
    (modules / "lib").mkdir()
    (modules / "lib" / "words.py").write_text("")
    (modules / "src").mkdir()
    (modules / "src" / "main.py").write_text("import words")
    target = COMMAND.replace("bot.py", "src/main.py")
    by_path = f"{target}, env: {{PYTHONPATH: lib}}"
    before = fingerprint(modules, target), fingerprint(modules, by_path)
    (modules / "lib" / "words.py").write_text("changed = True")
    assert fingerprint(modules, target) == before[0]
    assert fingerprint(modules, by_path) != before[1]
    elsewhere = {"PYTHONPATH": f"{modules / 'lib'}{os.pathsep}{modules / 'no_such_folder'}"}
    assert "words" in command_imports(["python", "main.py"], modules / "src", elsewhere).files


@pytest.mark.parametrize(
    ("command", "code", "is_unread"),
    [
        (["python", "bot.py"], "import json", False),
        (["python", "-m", "bot"], "import json", False),
        (["./bot.py"], "#!/usr/bin/env python3\nimport json", False),
        (["python", "bot.py"], "import json; __import__(json.NAME)", True),
        (["python", "bot.py"], "import sys; sys.path.append('lib')", True),
        (["python", "bot.py"], "from sys import path", True),
        (["python", "bot.py"], "import site; site.addsitedir('lib')", True),
        (["python", "bot.py"], "import importlib; load = importlib.import_module; load('words')", True),
        (["python", "bot.py"], "from importlib import import_module as load; load('words')", True),
        (["python", "bot.py"], "import importlib; importlib.import_module('.words', 'parts')", True),
        (["python", "bot.py"], "__import__('parts', fromlist=['words'])", True),
        (["python", "bot.py"], "import runpy; runpy.run_path('words.py')", True),
        (["python", "bot.py"], "from importlib.util import spec_from_file_location as load", True),
        (["python", "bot.py"], "from parts import *", True),
        (["./bot"], "#!/usr/bin/env python3\nimport json", False),
        (["python", "bot.py"], "print 'an older Python'", True),
        (["python", "-m", "no_module_here"], "", True),
        (["python", "-m", "bot\0"], "", True),
        (["./no_such_program"], "", True),
        (["python", "no_such_folder/bot.py"], "", True),
        (["node", "bot.js"], "", True),
        (["claude", "-p"], "", True),
    ],
)
def test_what_cannot_be_followed_is_told_unless_files_are_named(
    tmp_path: Path, command: list[str], code: str, is_unread: bool
) -> None:
    for name in ("bot.py", "bot"):
        (tmp_path / name).write_text(code)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("import pathlib; __all__ = [*names()]")
    imports = command_imports(command, tmp_path, {})
    assert bool(unseen_warnings("targets.bot", imports, [])) is is_unread
    assert not unseen_warnings("targets.bot", imports, ["prompt.md"])


def test_an_expression_deeper_than_the_stack_is_followed(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text("import words\nx = " + " + ".join(["'a'"] * 1500))
    (tmp_path / "words.py").write_text("")
    assert list(command_imports(["python", "bot.py"], tmp_path, {}).files) == ["words"]
