"""``quintain init``: writes the files of a new evaluation, or carries one over from another tool."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Final

import typer

from quintain.config.secrets import find_variables, missing_variable_errors
from quintain.config.vendors import KEY_VARIABLES, VENDORS
from quintain.config.yaml_file import parse_yaml, write_yaml
from quintain.errors import ConfigError
from quintain.settings import environment, with_secrets
from quintain_cli.console import AsJson, escape_for_terminal, exit_with_error, print_json, print_stderr
from quintain_cli.init.agentv import read_agentv
from quintain_cli.init.carried import CarriedEvaluation, mapping, read_document
from quintain_cli.init.openai_evals import read_registry, read_samples, registry_entries
from quintain_cli.init.project import project_files
from quintain_cli.init.promptfoo import read_promptfoo


def init(
    folder: Annotated[Path, typer.Argument(help="The folder for the files; created if absent.")] = Path(),
    provider: Annotated[str | None, typer.Option(help=f"One of {', '.join(PROVIDERS)}.")] = None,
    dataset: Annotated[Path | None, typer.Option(help="A file of cases; without it, a sample of five.")] = None,
    grader: Annotated[str | None, typer.Option(help=f"One of {', '.join(GRADERS)}.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="An evaluation of promptfoo, AgentV or OpenAI's evals.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files, and write none.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the files of a new evaluation, or carry one over.

    Asks what no option says: which provider, which dataset, which grader. Without a terminal it takes the defaults:
    the provider whose key is set (else one that needs none), a sample of five cases, the grader contains. Existing
    files are never overwritten. With --from it carries an evaluation over and lists what could not be carried, by line.
    """
    try:
        carried = None if source is None else read_other_tool(source, folder)
        files = (
            new_project(*_answers(folder, provider, grader, dataset, asks=sys.stdin.isatty() and not as_json))
            if carried is None
            else project_files(carried)
        )
        needs = missing_needs(files["quintain.yaml"], environment())
        if not dry_run:
            write_project(folder, files)
    except ConfigError as error:
        exit_with_error(error, as_json=as_json)
    if as_json:
        shown = {"folder": str(folder), "written": not dry_run, "files": files, "leftOut": [], "readOutside": []}
        if carried is not None:
            shown |= {"leftOut": [asdict(note) for note in carried.left_out], "readOutside": carried.outside}
        print_json(shown)
        return
    for name, text in files.items():
        typer.echo(f"--- {folder / name}\n{escape_for_terminal(text)}" if dry_run else f"wrote    {folder / name}")
    if carried is not None:
        _print_what_differs(carried)
    for need in needs:
        typer.echo(f"needs    {escape_for_terminal(need)}")
    typer.echo(f"next     {'the same without --dry-run writes them' if dry_run else _next_command(folder)}")
    if carried is not None:
        typer.echo(f"carried  cases: {len(carried.cases)}; parts that were left out: {len(carried.left_out)}")


def _print_what_differs(carried: CarriedEvaluation) -> None:
    for name in carried.outside:
        typer.echo(f"read     {escape_for_terminal(name)}, which is outside of the folder of {carried.source}")
    for note in carried.left_out:
        where = f"{note.file or carried.source}, line {note.line}"
        print_stderr(escape_for_terminal(f"left out {where}: {note.place}: {note.reason}"))
    judges = [one for case in carried.cases for one in case.graders if one.get("builtin") == "llm-judge"]
    if any("judge_target" not in one for one in judges):
        typer.echo("judges   a target judges its own answers, until quintain.yaml names its judge_target")


def read_other_tool(source: Path, output: Path) -> CarriedEvaluation:
    """Read an evaluation of promptfoo, AgentV or OpenAI's evals, whose files are written to ``output``.

    Raises `ConfigError` if it is none of them, if nothing of it can be carried, or for a file of it that cannot be
    read.
    """
    carried = CarriedEvaluation(source=source, output=output)
    if source.suffix == ".jsonl":
        read_samples(carried)
        return carried
    value, at = read_document(source)
    body = mapping(value)
    if entries := registry_entries(body):
        read_registry(carried, entries, at)
        return carried
    if not body.keys() & {*_OF_PROMPTFOO, "tests", "evalcases"}:
        raise ConfigError(
            f"{source}: promptfoo's evaluation has the key prompts, AgentV's tests, OpenAI's evals class and args"
        )
    carried.is_agentv = _is_agentv(source, body)
    if carried.is_agentv and not body.keys() & {"prompts", "providers"}:
        read_agentv(carried, body, at)
    else:
        read_promptfoo(carried, body, at)
        if not carried.prompts:
            raise ConfigError(f"{source}: none of its prompts can be carried over: {carried.reasons('prompts')}")
    return carried


#: What stands in an evaluation of promptfoo, and not in one of AgentV 4.
_OF_PROMPTFOO: Final = frozenset({"prompts", "providers", "targets", "scenarios"})


def _is_agentv(source: Path, body: Mapping[str, object]) -> bool:
    """Whether an evaluation is one of AgentV: by its name, its spelling, or what only AgentV has."""
    if source.name.endswith((".eval.yaml", ".eval.yml")) or not body.keys() & _OF_PROMPTFOO:
        return True
    tests = body.get("tests")
    listed = [mapping(test) for test in tests] if isinstance(tests, list) else []
    asserted = [one for test in (body, *listed) if isinstance(test.get("assert"), list) for one in test["assert"]]
    spellings = {"default_test", "evaluate_options", "nunjucks_filters", "input_files", "name"}
    return (
        bool(body.keys() & spellings)
        or any(isinstance(one, str) for one in asserted)
        or any("id" in test for test in listed)
    )


def _answers(
    folder: Path, provider: str | None, grader: str | None, dataset: Path | None, *, asks: bool
) -> tuple[str, str, str | None]:
    """Return provider, grader and dataset, asked for where no option says. Raises `ConfigError` for unknown ones."""
    suggested = suggest_provider([name for name, value in environment().items() if value])
    chosen_provider = provider or _ask("Which provider", list(PROVIDERS), suggested, asks=asks)
    file = "" if dataset is not None or not asks else typer.prompt("Which dataset (empty: a sample)", default="")
    chosen_grader = grader or _ask("Which grader", list(GRADERS), "contains", asks=asks)
    for what, name, known in (("provider", chosen_provider, PROVIDERS), ("grader", chosen_grader, GRADERS)):
        if name not in known:
            raise ConfigError(f"--{what} {name}: no such {what}; one of {', '.join(known)}")
    chosen = dataset if dataset is not None else Path(file) if file else None
    if chosen is not None and not chosen.is_file():
        raise ConfigError(f"--dataset {chosen}: no such file")
    return chosen_provider, chosen_grader, None if chosen is None else _relative(chosen, folder)


def _ask(question: str, names: list[str], default: str, *, asks: bool) -> str:
    if not asks:
        return default
    answer: str = typer.prompt(f"{question} ({', '.join(names)})", default=default)
    return answer.strip()


def _relative(path: Path, folder: Path) -> str:
    """Return a dataset's path as the evaluation file names it: relative to its folder."""
    return os.path.relpath(path.resolve(), folder.resolve())


def _next_command(folder: Path) -> str:
    if folder.resolve() == Path.cwd():
        return "quintain run eval.yaml"
    return f"cd {shlex.quote(str(folder))} && quintain run eval.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderChoice:
    """A provider that a new evaluation may use: the variable of its key, its model, and what else it needs."""

    key: str | None
    target: Mapping[str, object]
    comment: str


#: A small model of each vendor, in the order in which they are offered.
_MODELS: Final[Mapping[str, str]] = {
    "openai": "gpt-4o-mini", "anthropic": "claude-haiku-4-5", "google": "gemini-2.5-flash",
    "mistral": "mistral-small-latest", "groq": "llama-3.1-8b-instant", "openrouter": "openai/gpt-4o-mini",
    "deepseek": "deepseek-chat", "xai": "grok-3-mini", "cohere": "command-r7b-12-2024",
    "together": "meta-llama/Llama-3.3-70B-Instruct-Turbo", "azure": "gpt-4o-mini", "ollama": "llama3.2",
    "vllm": "Qwen/Qwen2.5-7B-Instruct",
}  # fmt: skip


def _vendor_choice(provider: str, model: str) -> ProviderChoice:
    key = KEY_VARIABLES.get(provider)
    target: dict[str, object] = {"provider": provider, "model": model}
    if key is None:
        target["base_url"] = VENDORS[provider].base_url
        return ProviderChoice(key=None, target=target, comment="A server of your own: set its base_url and a model.")
    comment = f"{key} is read from the environment."
    if provider == "azure":
        target["base_url"] = "https://NAME.openai.azure.com/openai/v1"
        comment = f"{comment} Replace NAME by your resource's, and model by your deployment's."
    return ProviderChoice(key=key, target={**target, "api_key": f"${{{{ {key} }}}}"}, comment=comment)


#: By name, in the order in which they are suggested: the first one whose key is set, else `mock`.
PROVIDERS: Final[Mapping[str, ProviderChoice]] = {
    **{name: _vendor_choice(name, model) for name, model in _MODELS.items()},
    "agent": ProviderChoice(
        key=None,
        target={"provider": "agent", "agent": "agent:agent"},
        comment="agent in agent.py: a function, or an agent of a framework (docs/agents.md).",
    ),
    "mock": ProviderChoice(
        key=None,
        target={"provider": "mock"},
        comment="It repeats the question and needs no key. For a model: quintain init with-model --provider openai",
    ),
}

#: The graders that a new evaluation may begin with, by name.
GRADERS: Final[Mapping[str, Mapping[str, object]]] = {
    "contains": {"name": "correct", "builtin": "contains", "ignore_case": True},
    "exact": {"name": "correct", "builtin": "exact", "ignore_case": True},
    "judge": {"name": "correct", "builtin": "llm-judge", "prompt": "judge.md"},
}

JUDGE_PROMPT: Final = "The answer is correct if it means the same as what is expected. Ignore style and length.\n"


def suggest_provider(variables: Collection[str]) -> str:
    """Return the first provider whose key is set, or ``mock``. ``variables`` are the names that are set."""
    return next((name for name, choice in PROVIDERS.items() if choice.key in variables), "mock")


def new_project(provider: str, grader: str, dataset: str | None) -> dict[str, str]:
    """Return the files of a new evaluation, by name.

    ``dataset`` is the path of a file of the user's; a sample of five cases is written without one.
    """
    choice, is_agent = PROVIDERS[provider], provider == "agent"
    graders = [dict(GRADERS[grader]), {"name": "brief", "function": "graders:brief"}]
    if is_agent and dataset is None:
        graders.append({"name": "looked-up", "builtin": "tool-calls", "called": ["look_up"], "max": 1})
    target = "agent" if is_agent else "model"
    evaluation = {
        "dataset": dataset or "cases.jsonl",
        "targets": [target],
        "max_calls": 100,
        "threshold": 0.5,
        "graders": graders,
    }
    files = {
        "quintain.yaml": f"# {choice.comment}\n{write_yaml({'targets': {target: dict(choice.target)}})}",
        "eval.yaml": write_yaml(evaluation),
        "graders.py": packaged_file("graders.py"),
        "test_graders.py": packaged_file("test_graders.py"),
        ".gitignore": packaged_file("gitignore"),
    }
    if is_agent:
        files["agent.py"] = packaged_file("agent.py")
    if grader == "judge":
        files["judge.md"] = JUDGE_PROMPT
    if dataset is None:
        files["cases.jsonl"] = packaged_file("cases.jsonl")
    return files


def missing_needs(configuration: str, env: Mapping[str, str]) -> list[str]:
    """Return the variables that the targets of a configuration's text lack in the environment.

    Raises `ConfigError` where a variable names a file that cannot be read.
    """
    tree = parse_yaml(configuration, "quintain.yaml").value
    return list(missing_variable_errors(tree, with_secrets(env, find_variables(tree))))


def packaged_file(name: str) -> str:
    """Return the text of a file that ships with this package."""
    return (resources.files("quintain_cli.init") / "files" / name).read_text(encoding="utf-8")


def write_project(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files. Raises `ConfigError`, before anything is written, if one exists or the folder is read-only."""
    taken = sorted(name for name in files if (folder / name).exists())
    if taken:
        raise ConfigError(f"{folder}: has {', '.join(taken)} already, and nothing is overwritten; name another folder")
    written: list[Path] = []
    try:
        contents = {folder / name: text.encode() for name, text in files.items()}
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            with path.open("xb") as file:
                written.append(path)
                file.write(content)
    except OSError as error:
        # Half of an evaluation is of no use.
        for path in written:
            path.unlink(missing_ok=True)
        for path in made:
            with suppress(OSError):
                path.rmdir()
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from None
