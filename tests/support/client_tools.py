"""Other people's tools, each in an environment of its own: a virtual environment, or a prefix of npm.

They are kept in the folder that ``QUINTAIN_CLIENTS_CACHE`` names, else in ``quintain/clients`` of the user's cache.
``QUINTAIN_TEST_CLIENTS`` says which run: ``all``, or names with commas. `make test` runs none of them.
"""

from __future__ import annotations

import os
import platform
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.servers.commands import run_command
from support.servers.errors import ServerUnavailable
from support.servers.nodejs import find_node, npm_package
from support.servers.packages import Report, install_lock

CACHE_VARIABLE, CHOICE_VARIABLE = "QUINTAIN_CLIENTS_CACHE", "QUINTAIN_TEST_CLIENTS"
_INSTALL_SECONDS = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool:
    """A tool of one version: a package of PyPI or npm, with the packages that it needs beside it.

    ``chosen_dependencies``: packages of PyPI in place of all that the tool declares, where those are gigabytes that
    no test imports.
    """

    name: str
    version: str
    pypi: str | None = None
    npm: str | None = None
    beside: tuple[str, ...] = ()
    chosen_dependencies: tuple[str, ...] = ()

    def folder(self, cache: Path) -> Path:
        """The folder of its environment."""
        return cache / f"{self.name}-{self.version}"

    def programs(self, cache: Path) -> Path:
        """The folder of its programs."""
        return self.folder(cache) / ("bin" if self.pypi else f"{_npm_folder(self)}/node_modules/.bin")

    @property
    def modules(self) -> str:
        """Where its JavaScript modules are, in its folder."""
        return f"{_npm_folder(self)}/node_modules"

    def is_installed(self, cache: Path) -> bool:
        """Whether its environment is complete."""
        return (self.folder(cache) / ".complete").is_file()

    def install(self, environment: Mapping[str, str], report: Report) -> None:
        """Install what is missing. Raises `ServerUnavailable` where it cannot be installed."""
        cache = cache_folder(environment)
        folder = self.folder(cache)
        if self.npm is not None:
            find_node(environment, report)
            npm_package(self.npm, self.version, environment, report, parent=folder, beside=self.beside)
        else:
            with install_lock():
                if self.is_installed(cache):
                    return
                report(f"installing {self.pypi} {self.version} from PyPI, into {folder}")
                run_command([sys.executable, "-m", "venv", str(folder)], environment=environment, timeout_seconds=120)
                pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
                for words in self._pip_words():
                    run_command([*pip, *words], environment=environment, timeout_seconds=_INSTALL_SECONDS)
        (folder / ".complete").touch()

    def _pip_words(self) -> list[list[str]]:
        package = f"{self.pypi}=={self.version}"
        if self.chosen_dependencies:
            return [[*self.chosen_dependencies], ["--no-deps", package]]
        return [[package, *self.beside]]


def _npm_folder(tool: ClientTool) -> str:
    return f"{(tool.npm or '').replace('/', '-').lstrip('@')}-{tool.version}"


#: npm's name of this machine, in the names of packages with a binary.
MACHINE = f"{sys.platform}-{'x64' if platform.machine() == 'x86_64' else 'arm64'}"

#: What Quintain needs, for a framework whose agents it runs in one environment with itself, from this checkout.
QUINTAIN: tuple[str, ...] = tuple(
    tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["dependencies"]
)

TOOLS: Mapping[str, ClientTool] = {
    tool.name: tool
    for tool in (
        ClientTool(name="agentv", version="4.42.4", npm="agentv"),
        ClientTool(name="agentv-core", version="4.42.4", npm="@agentv/core"),
        ClientTool(name="openai-node", version="6.49.0", npm="openai"),
        ClientTool(name="anthropic-node", version="1.12.0", npm="@anthropic-ai/sdk"),
        ClientTool(name="amqplib", version="2.3.1", npm="amqplib"),
        ClientTool(
            name="claude-code",
            version="2.1.332",
            npm="@anthropic-ai/claude-code",
            beside=(f"@anthropic-ai/claude-code-{MACHINE}@2.1.332",),
        ),
        ClientTool(
            name="codex",
            version="0.171.0",
            npm="@openai/codex",
            beside=(f"@openai/codex-{MACHINE}@npm:@openai/codex@0.171.0-{MACHINE}",),
        ),
        ClientTool(name="opencode", version="1.18.33", npm="opencode-ai", beside=(f"opencode-{MACHINE}@1.18.33",)),
        ClientTool(name="inspect", version="0.3.285", pypi="inspect_ai", beside=("openai",)),
        # It needs Node.js 22, and the binary of its database: optional packages are left out.
        ClientTool(
            name="promptfoo",
            version="0.123.1",
            npm="promptfoo",
            beside=(
                f"node-{MACHINE}@22.23.3",
                f"@libsql/{MACHINE}{'-gnu' if sys.platform == 'linux' else ''}@0.5.29",
            ),
        ),
        ClientTool(name="lm-eval", version="0.4.13", pypi="lm_eval[api]", beside=("transformers",)),
        ClientTool(name="deepeval", version="4.3.1", pypi="deepeval"),
        ClientTool(name="litellm", version="1.100.0", pypi="litellm"),
        ClientTool(name="langchain-openai", version="1.7.3", pypi="langchain-openai"),
        ClientTool(name="pydantic-ai", version="2.68.0", pypi="pydantic-ai-slim[openai,anthropic]"),
        ClientTool(name="instructor", version="1.17.0", pypi="instructor"),
        ClientTool(name="openai-agents", version="0.24.0", pypi="openai-agents"),
        ClientTool(name="agent-crewai", version="1.15.30", pypi="crewai", beside=QUINTAIN),
        ClientTool(name="agent-inspect", version="0.3.285", pypi="inspect_ai", beside=("openai", *QUINTAIN)),
        ClientTool(
            name="agent-langgraph",
            version="1.2.24",
            pypi="langgraph",
            beside=("langchain==1.5.2", "langchain-openai==1.7.3", *QUINTAIN),
        ),
        ClientTool(name="agent-openai-agents", version="0.24.0", pypi="openai-agents", beside=QUINTAIN),
        ClientTool(name="agent-pydantic-ai", version="2.68.0", pypi="pydantic-ai-slim[openai]", beside=QUINTAIN),
        ClientTool(name="agent-smolagents", version="1.26.0", pypi="smolagents[openai]", beside=QUINTAIN),
        ClientTool(name="a2a", version="1.3.0", pypi="a2a-sdk[http-server]", beside=("uvicorn",)),
        ClientTool(name="a2a-of-0.3", version="0.3.26", pypi="a2a-sdk[http-server]", beside=("uvicorn",)),
        # Without PyTorch and the clients of providers that no test asks.
        ClientTool(
            name="garak",
            version="0.17.1",
            pypi="garak",
            chosen_dependencies=(
                *("aiohttp", "avidtools==0.1.2", "backoff", "cmd2==2.4.3", "colorama", "jsonschema"),
                *(
                    "langdetect==1.0.9",
                    "markdown",
                    "nltk",
                    "numpy",
                    "openai>=2,<3",
                    "pandas",
                    "pyyaml",
                    "requests",
                    "scipy",
                ),
                *("tqdm", "xdg-base-dirs"),
            ),
        ),
    )
}


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder of all tools' environments."""
    named = environment.get(CACHE_VARIABLE)
    if named:
        return Path(named).absolute()
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quintain" / "clients"


def reason_not_to_run(tool: ClientTool, environment: Mapping[str, str]) -> str | None:
    """Return why this tool is not run here, or None where it is."""
    chosen = {name.strip() for name in environment.get(CHOICE_VARIABLE, "").split(",")} - {""}
    if tool.name in chosen:
        return None
    return None if "all" in chosen else "left to `make clients`"


def search_path(tool: ClientTool, environment: Mapping[str, str]) -> str:
    """Return a PATH on which the tool's own programs come first."""
    return os.pathsep.join([str(tool.programs(cache_folder(environment))), environment.get("PATH", "")])


__all__ = ["TOOLS", "ClientTool", "ServerUnavailable", "cache_folder", "reason_not_to_run", "search_path"]
