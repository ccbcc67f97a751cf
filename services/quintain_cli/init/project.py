"""The files of a new evaluation, by the answers to the questions of ``quintain init``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import yaml

from quintain.config.references import find_variables, missing_variable_errors
from quintain.errors import ConfigError
from quintain.secret_files import with_secrets
from quintain_cli.init.carried import to_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderChoice:
    """A provider that a new evaluation may use: the variable of its key, its model, and what else it needs."""

    key: str | None
    target: Mapping[str, object]
    comment: str


#: By name, in the order in which they are suggested: the first one whose key is set, else `mock`.
PROVIDERS: Final[Mapping[str, ProviderChoice]] = {
    "openai": ProviderChoice(
        key="OPENAI_API_KEY",
        target={"provider": "openai", "model": "gpt-4o-mini", "api_key": "${{ OPENAI_API_KEY }}"},
        comment="OPENAI_API_KEY is read from the environment.",
    ),
    "anthropic": ProviderChoice(
        key="ANTHROPIC_API_KEY",
        target={"provider": "anthropic", "model": "claude-haiku-4-5", "api_key": "${{ ANTHROPIC_API_KEY }}"},
        comment="ANTHROPIC_API_KEY is read from the environment.",
    ),
    "ollama": ProviderChoice(
        key=None,
        target={"provider": "openai", "model": "llama3.2", "base_url": "http://127.0.0.1:11434/v1"},
        comment="Any server with OpenAI's API: set its base_url and a model.",
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
    choice = PROVIDERS[provider]
    evaluation = {
        "dataset": dataset or "cases.jsonl",
        "targets": ["model"],
        "max_calls": 100,
        "threshold": 0.5,
        "graders": [dict(GRADERS[grader]), {"name": "brief", "function": "graders:brief"}],
    }
    files = {
        "quintain.yaml": f"# {choice.comment}\n{to_yaml({'targets': {'model': dict(choice.target)}})}",
        "eval.yaml": to_yaml(evaluation),
        "graders.py": packaged_file("graders.py"),
        "test_graders.py": packaged_file("test_graders.py"),
        ".gitignore": packaged_file("gitignore"),
    }
    if grader == "judge":
        files["judge.md"] = JUDGE_PROMPT
    if dataset is None:
        files["cases.jsonl"] = packaged_file("cases.jsonl")
    return files


def missing_needs(configuration: str, env: Mapping[str, str]) -> list[str]:
    """Return the variables that the targets of a configuration's text lack in the environment.

    Raises `ConfigError` where a variable names a file that cannot be read.
    """
    tree = yaml.safe_load(configuration)
    return list(missing_variable_errors(tree, with_secrets(env, find_variables(tree))))


def packaged_file(name: str) -> str:
    """Return the text of a file that ships with this package."""
    return (resources.files("quintain_cli.init") / "files" / name).read_text(encoding="utf-8")


def write_project(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files. Raises `ConfigError`, before anything is written, if one exists or the folder is read-only."""
    taken = sorted(name for name in files if (folder / name).exists())
    if taken:
        raise ConfigError(f"{folder}: has {', '.join(taken)} already, and nothing is overwritten; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from None
