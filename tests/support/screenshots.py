"""Makes the pictures of `quintain view` in docs/: ``make screenshots``. In both themes, and as wide as a telephone."""

from __future__ import annotations

import tempfile
from pathlib import Path

from support.browser import running_browser, start_view, visit
from support.command_line import CommandLine, command_line
from support.evaluations import copy_capitals

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"

#: The name of a picture, its page, theme and width in pixels.
SHOTS = [
    ("run-light", "/run/eval", "light", 1100),
    ("run-dark", "/run/eval", "dark", 1100),
    ("case-light", "/run/eval/case?id=br&at=5", "light", 1100),
    ("case-dark", "/run/eval/case?id=br&at=5", "dark", 1100),
    ("run-narrow", "/run/eval", "light", 390),
    ("case-narrow", "/run/eval/case?id=br&at=5", "dark", 390),
]

#: A run is shown down to its cases.
_HEIGHTS = {"run": 1_500, "case": 900}


def main() -> None:
    """Run the example, and take the pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, command_line(Path(name)) as shell, running_browser(print) as browser:
        _run_example(shell)
        address = start_view(shell)
        for title, path, scheme, width in SHOTS:
            with browser.new_context(
                viewport={"width": width, "height": _HEIGHTS[title.split("-")[0]]}, color_scheme=scheme
            ) as context:
                page = visit(context, address).go(path)
                page.screenshot(path=PICTURES / f"{title}.png")
                print(PICTURES / f"{title}.png")


def _run_example(shell: CommandLine) -> None:
    copy_capitals(shell.folder)
    shell.run("run", "eval.yaml", "--output", "runs/eval")


if __name__ == "__main__":
    main()
