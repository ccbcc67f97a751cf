"""The house rules that no linter holds: how long things may be, what is public, and that what is written is run."""

from __future__ import annotations

import ast
import functools
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

import quintain
from generate.checkout import REPOSITORY, tracked
from quintain_cli.__main__ import LazyCommand, app
from support.client_tools import TOOLS
from support.command_line import clean_environment

MODULES = tracked("shared/**/*.py", "services/**/*.py")
PAGES = tracked("*.md", "docs/*.md", "docs/protocol/*.md", "examples/*.md")
TEST_MODULES = [path for path in tracked("tests/**/*.py") if "inputs" not in path.parts]
SOURCES = [*MODULES, *TEST_MODULES, *tracked("benchmarks/*.py")]

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60

#: Words that name a module or a class only for those who wrote it.
RETIRED_MODULES = set(  # a page of words, not a list
    """
    answering apart asked asking assembly beside board census checking choice closing collecting conventions
    desk dialect door doors drive drives ears evaluator examination figures finishing foreign function_host
    given_session guard heard hosted http_line incoming intake interim journal judge_words judging kept
    listening metered meter mistakes operating paired patience performing pieces pipes presence printed probing
    ready_graders refusals round_trip run_accounts run_ground running said screen sequence serving sheets
    slot_said spending stage standing steps surface taking_back tally telling terms traced trying turn upkeep
    visit vocabulary warm_pool warm_process watched
    """.split()  # noqa: SIM905
)
RETIRED_CLASSES = set(  # a page of words, not a list
    """
    Answering Asked Asking Bell Board Books Desk Door Doors Drive Ears Ending Errands Guard Heard Held Here
    Journal Kept Line Look Lottery Patience Pieces Question RunHears RunSays Running Said Saying Sheet Siege
    Stage Standing Stranger Surroundings Taken TakingBack Tally Telling Took Undertaker Visit Visitor Wanted Way
    Who Word
    """.split()  # noqa: SIM905
)

#: Every command that a page may show, and the place that runs it.
RUN_BY = {
    "docker compose up": "tests/support/compose_fleet.py",
    "docker compose run": "tests/acceptance/test_compose.py",
    "docker run": "tests/acceptance/test_compose.py",
    "make check": ".ci/run",
    "make demo": ".ci/run",
    "make test": ".ci/run",
    "make bench": "Makefile",
    "make bench-check": ".ci/run",
    "make bench-peers": "Makefile",
    "make docs": "Makefile",
    "make faults": "Makefile",
    "make soak": "Makefile",
    "make flood": "Makefile",
    "make fuzz": "Makefile",
    "make pythons": "Makefile",
    "make clients": "Makefile",
    ".venv/bin/pytest tests/conformance/hosts": "tests/clients/test_node_host.py",
    "make browser": "Makefile",
    "make bench-runs": "Makefile",
    "make bench-view": "Makefile",
    "make screenshots": "Makefile",
    "python ~/quintain/examples/triage/stand_in.py": "tests/support/page_shell.py",
    "quintain demo": "tests/acceptance/test_demo.py",
    "quintain init": "tests/acceptance/test_init.py",
    "quintain check": "tests/acceptance/test_check.py",
    "quintain run": "tests/acceptance/test_run.py",
    "quintain rescore": "tests/acceptance/test_changed_evaluation.py",
    "quintain calibrate": "tests/acceptance/test_calibrate.py",
    "quintain report": "tests/acceptance/test_run.py",
    "quintain view": "tests/acceptance/test_view.py",
    "quintain export": "tests/acceptance/test_export.py",
    "quintain compare": "tests/acceptance/test_run.py",
    "quintain schema eval": "tests/acceptance/test_check.py",
    "quintain schema config": "tests/acceptance/test_check.py",
    "quintain record export": "tests/acceptance/test_answer_cache.py",
    "quintain record import": "tests/acceptance/test_answer_cache.py",
    "quintain cache list": "tests/acceptance/test_answer_cache.py",
    "quintain cache prune": "tests/acceptance/test_answer_cache.py",
    "quintain cache clear": "tests/acceptance/test_answer_cache.py",
    "quintain up": "tests/acceptance/test_up.py",
    "quintain serve metadata": "tests/acceptance/test_services.py",
    "quintain serve worker": "tests/acceptance/test_services.py",
    "quintain serve gateway": "tests/acceptance/test_serve_gateway.py",
    "quintain serve host": "tests/acceptance/test_host.py",
    "quintain session open": "tests/acceptance/test_commands.py",
    "quintain session list": "tests/acceptance/test_commands.py",
    "quintain session show": "tests/acceptance/test_commands.py",
    "quintain session close": "tests/acceptance/test_commands.py",
    "quintain invoke": "tests/acceptance/test_commands.py",
    "quintain info": "tests/acceptance/test_commands.py",
    "quintain doctor": "tests/acceptance/test_doctor.py",
    "quintain status": "tests/acceptance/test_status.py",
    "quintain quota list": "tests/acceptance/test_quota_command.py",
    "quintain quota set": "tests/acceptance/test_quota_command.py",
    "quintain target pause": "tests/acceptance/test_target_and_drain.py",
    "quintain target resume": "tests/acceptance/test_target_and_drain.py",
    "quintain drain": "tests/acceptance/test_target_and_drain.py",
    "quintain snippet": "tests/acceptance/test_snippet.py",
    "quintain dlq list": "tests/acceptance/test_dlq.py",
    "quintain dlq show": "tests/acceptance/test_dlq.py",
    "quintain dlq replay": "tests/acceptance/test_dlq.py",
    "quintain dlq drop": "tests/acceptance/test_dlq.py",
    "quintain ledger prune": "tests/acceptance/test_ledger_command.py",
    "quintain ledger release": "tests/acceptance/test_run_money.py",
    "quintain broker add-user": "tests/integration/test_broker_commands.py",
    "quintain broker limit": "tests/integration/test_broker_commands.py",
}

#: Words of a shell that start no program of ours.
_BUILT_IN = {"cd", "cp", "export", "head", "mkdir", "unset"}

_FENCED = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@functools.cache
def tree_of(module: Path) -> ast.Module:
    """The syntax tree of a file, which several rules look at."""
    return ast.parse(module.read_text())


#: The command line with all its commands.
COMMAND: Any = typer.main.get_command(app)


def named(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def shell_lines() -> Iterator[tuple[str, str]]:
    """Every line of every page's shell blocks, with the page's name."""
    for page in PAGES:
        for block in _FENCED.findall(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                text = line.partition(" #")[0].removeprefix("$ ").strip()
                if text and not text.startswith("#"):
                    yield named(page), text


LINES = list(shell_lines())


def words_of(line: str) -> list[str]:
    """The words of a line's command, without the variables set before it."""
    words = shlex.split(line)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    return words


def faults_of(module: Path) -> Iterator[str]:
    """What breaks the rules on modules and functions, in one line each."""
    tree = tree_of(module)
    if not ast.get_docstring(tree):
        yield f"{named(module)} has no docstring"
    if (lines := len(module.read_text().splitlines())) > MAX_MODULE_LINES:
        yield f"{named(module)} has {lines} lines"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{named(module)}: {node.name} has {lines} lines"


def test_modules_have_docstrings_and_modules_and_functions_are_short() -> None:
    assert [fault for module in MODULES for fault in faults_of(module)] == []


def test_no_module_or_class_has_a_retired_name() -> None:
    # With a syntax tree of each file it would take ten times as long.
    classes = {name for source in SOURCES for name in re.findall(r"^ *class (\w+)", source.read_text(), re.MULTILINE)}
    assert "DeclarationCheck" in classes
    assert {source.stem for source in SOURCES} & RETIRED_MODULES == set()
    assert {name.lstrip("_") for name in classes} & RETIRED_CLASSES == set()


def foreign_names(module: Path) -> Iterator[str]:
    """Every dotted name that a module imports from a package that is not ours."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if not name.startswith("quintain"))


def test_no_module_imports_a_private_name_of_another_package() -> None:
    private = re.compile(r"(^|\.)_(?!_)")
    imported = [(named(module), name) for module in MODULES for name in foreign_names(module)]
    assert len(imported) > len(MODULES)
    assert [(module, name) for module, name in imported if private.search(name)] == []


def test_a_class_name_means_one_thing() -> None:
    names = [node.name for module in MODULES for node in tree_of(module).body if isinstance(node, ast.ClassDef)]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_the_public_names_are_sorted_and_there() -> None:
    assert list(quintain.__all__) == sorted(set(quintain.__all__))
    assert [name for name in quintain.__all__ if not hasattr(quintain, name)] == []
    everything: dict[str, object] = {}
    exec("from quintain import *", everything)
    assert set(quintain.__all__) <= everything.keys()


def test_everything_public_says_what_it_is_for() -> None:
    assert [name for name in quintain.__all__ if not getattr(quintain, name).__doc__] == []


def test_every_word_that_make_lists_is_one_that_it_knows() -> None:
    # Started by `make test`, this make would take itself for a part of that one.
    env = {name: value for name, value in clean_environment().items() if not name.startswith(("MAKE", "MFLAGS"))}

    def make(*words: str) -> str:
        return subprocess.run(
            ["make", *words], cwd=REPOSITORY, env=env, capture_output=True, text=True, check=True, timeout=30
        ).stdout

    listed = re.findall(r"^  ([\w-]+) +\S", make(), re.MULTILINE)
    phony = re.search(r"^\.PHONY: (.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert {*listed, "help"} == set(phony[1].split())
    for word in listed:
        make("--dry-run", word)


def test_the_pages_show_commands() -> None:
    assert {"make demo", "make test"} <= {line for page, line in LINES if page == "README.md"}


def is_run(line: str) -> bool:
    """Whether the file that RUN_BY names for a page's command runs that command."""
    words = words_of(line)
    if not words or words[0] in _BUILT_IN:
        return True
    shown = [command for command in RUN_BY if words[: len(command.split())] == command.split()]
    if not shown:
        return False
    place = (REPOSITORY / RUN_BY[shown[0]]).read_text()
    program, *rest = shown[0].split()
    if program == "make":
        return re.search(rf"^(make {rest[0]}$|{rest[0]}:)", place, re.MULTILINE) is not None
    return ", ".join(f'"{word}"' for word in rest) in place


def test_the_commands_that_pages_show_are_run_where_the_table_says() -> None:
    assert [(page, line) for page, line in LINES if not is_run(line)] == []


@functools.cache
def loaded(command: LazyCommand) -> Any:
    """The command that a line of the table stands for."""
    return command.load_command()


def unknown_options(line: str) -> set[str]:
    """The options in a line that its command does not have."""
    command, words = COMMAND, words_of(line)[1:]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if isinstance(command, LazyCommand):
        command = loaded(command)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {word.partition("=")[0] for word in words if word.startswith("--")} - known


def test_the_options_that_pages_show_are_options_of_their_commands() -> None:
    commands = [(page, line) for page, line in LINES if words_of(line)[:1] == ["quintain"]]
    assert commands
    assert [(page, line, unknown) for page, line in commands if (unknown := unknown_options(line))] == []


def test_the_variables_that_pages_set_are_read() -> None:
    read = (REPOSITORY / "shared" / "quintain" / "settings.py").read_text()
    variables = [
        (page, line.removeprefix("export ").partition("=")[0])
        for page, line in LINES
        if line.startswith("export QUINTAIN_")
    ]
    assert variables
    assert [(page, name) for page, name in variables if f'"{name}"' not in read] == []


def test_the_map_of_the_contributors_names_every_package_and_only_paths_that_exist() -> None:
    page = (REPOSITORY / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE)
    in_table = {path.rstrip("/") for row in rows for path in re.findall(r"`([^`]+/)`", row)}
    packages = {named(module.parent) for module in MODULES if module.name == "__init__.py"}
    others = {named(path.parent) for path in tracked("*/*.py", "tests/*/*.py")}
    assert (packages | others) - in_table == set()
    paths = re.findall(r"`(\.?[\w.-]+/[\w./-]*)`", page)
    assert [path for path in paths if path != ".venv/superred" and not (REPOSITORY / path).exists()] == []


def test_the_documents_that_sources_name_exist() -> None:
    documents = {name for source in SOURCES for name in re.findall(r"\bdocs/[\w/-]+\.md\b", source.read_text())}
    assert "docs/protocol/README.md" in documents
    assert [name for name in sorted(documents) if not (REPOSITORY / name).is_file()] == []


def test_the_pages_of_the_tools_name_the_versions_that_are_run() -> None:
    pages = [(REPOSITORY / "docs" / name).read_text() for name in ("gateway.md", "protocol/hosts.md")]
    page = " ".join(" ".join(pages).split())
    assert [tool.name for tool in TOOLS.values() if f" {tool.version}" not in page] == []


def test_no_two_test_files_share_a_name() -> None:
    """The folders are no packages: with two files of one name the whole suite is not even collected."""
    names = [path.name for path in TEST_MODULES if path.name.startswith("test_")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_each_decision_has_a_number_of_its_own_and_at_most_250_words() -> None:
    pages = tracked("docs/decisions/*.md")
    numbers = [page.name[:4] for page in pages]
    assert sorted(set(numbers)) == numbers
    for number, page in zip(numbers, pages, strict=True):
        text = page.read_text()
        assert text.startswith(f"# {int(number)}. "), page.name
        assert len(text.split()) <= 250, page.name


def test_each_promise_has_its_place_and_each_file_of_tests_a_promise() -> None:
    rows = re.findall(
        r"^\| (?!promise|---).* \| (tests/.*) \|$", (REPOSITORY / "tests/README.md").read_text(), re.MULTILINE
    )
    places = [place.partition("::") for row in rows for place in row.split(", ")]
    tests = {named(path): path for path in TEST_MODULES if path.name.startswith("test_")}
    functions = {
        name: {node.name for node in tree_of(path).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        for name, path in tests.items()
    }
    assert [file for file, _, test in places if test and test not in functions.get(file, ())] == []
    assert [file for file, _, _ in places if not (REPOSITORY / file).exists()] == []
    assert tests.keys() - {file for file, _, _ in places} == set()
