"""Collects all pages in site/pages, those of the repository and those made from the code, and builds site/html.

    python -m generate.site

A page of the repository is copied with its links rewritten to where the linked files are in the site; what a page links
to outside of docs/ is copied too. The build is strict: it fails on a link to a page or heading that is not there.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

from generate import commands, environment, errors, files, lifecycle, metrics
from generate.checkout import REPOSITORY, tracked

SITE = REPOSITORY / "site"

#: What is made from the code, by its path in the site.
GENERATED = {
    "concepts/call.md": lifecycle.page,
    "concepts/call.svg": lifecycle.picture,
    "reference/commands.md": commands.page,
    "reference/evaluation-file.md": files.evaluation_page,
    "reference/configuration-file.md": files.configuration_page,
    "reference/environment.md": environment.page,
    "reference/errors.md": errors.errors_page,
    "reference/exit-codes.md": errors.exit_codes_page,
    "reference/metrics.md": metrics.page,
}

_LINK = re.compile(r"\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def place_of(path: str) -> str:
    """Return where a file of the repository is in the site; a folder stands for its first page."""
    if (REPOSITORY / path).is_dir():
        return place_of(posixpath.join(path, "README.md"))
    folder, name = posixpath.split(path)
    folder = "" if folder == "docs" else folder.removeprefix("docs/")
    return posixpath.join(folder, "index.md" if name == "README.md" else name)


def repository_pages() -> list[str]:
    """The Markdown files of the site, by their paths in the repository."""
    patterns = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/protocol/*.md", "docs/decisions/*.md")
    return [str(path.relative_to(REPOSITORY)) for path in tracked(*patterns, "examples/**/README.md")]


def collect(pages: Path) -> None:
    """Write every source of the site below ``pages``."""
    for path in repository_pages():
        _write(pages, place_of(path), _with_links_of_site(path, pages))
    for path, make in GENERATED.items():
        _write(pages, path, make())
    decisions = tracked("docs/decisions/*.md")
    titles = [(path.name, path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")) for path in decisions]
    entries = "".join(f"- [{title}]({name})\n" for name, title in titles)
    _write(
        pages,
        "decisions/index.md",
        f"# Decisions\n\nAt most 250 words each: the question, the choice and its reason.\n\n{entries}",
    )


def build(site: Path) -> int:
    """Make the site below this folder, strictly. Returns the exit code of the builder."""
    shutil.rmtree(site, ignore_errors=True)
    collect(site / "pages")
    shutil.copy(REPOSITORY / "docs" / "site.css", site / "pages")
    shutil.copy(REPOSITORY / "docs" / "zensical.toml", site)
    return subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=site, check=False).returncode


def _with_links_of_site(path: str, pages: Path) -> str:
    """Return a page of the repository with the links of the site, and copy what it links to and is no page."""
    folder, here = posixpath.dirname(path), posixpath.dirname(place_of(path))

    def rewritten(match: re.Match[str]) -> str:
        linked = posixpath.normpath(posixpath.join(folder, match[1]))
        source = REPOSITORY / linked
        if not source.exists():
            return match[0]
        place = place_of(linked)
        if source.is_file() and source.suffix != ".md":
            (pages / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, pages / place)
        return f"]({posixpath.relpath(place, here or '.')}{match[2] or ''})"

    return _LINK.sub(rewritten, (REPOSITORY / path).read_text(encoding="utf-8"))


def _write(pages: Path, path: str, text: str) -> None:
    (pages / path).parent.mkdir(parents=True, exist_ok=True)
    (pages / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(build(SITE))
