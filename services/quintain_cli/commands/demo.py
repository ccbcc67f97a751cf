"""``quintain demo``: runs an example evaluation in this process, without an API key or a broker."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from quintain_cli.console import print_stderr
from quintain_cli.run.execution import RunOptions, run_and_report

#: The example that ships with the package; ``examples/capitals`` of the repository is the same folder.
EXAMPLE_NAME = "capitals"


def demo(
    folder: Annotated[Path, typer.Option(help="Where to put the example; what is there is kept.")] = Path(
        "quintain-demo"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print only the totals, as JSON.")] = False,
) -> None:
    """Grade a dozen cases with three targets and two graders, in this process: no key, no broker."""
    copy_example(folder)
    # A demo starts afresh, in a folder only it writes to; a run of one's own keeps what it has.
    results = folder / "demo-results"
    shutil.rmtree(results, ignore_errors=True)
    if not as_json:
        print_stderr(f"demo     everything it runs is in {folder}: change it, and run it again")
    options = RunOptions(path=folder / "eval.yaml", config=folder / "quintain.yaml", output=results, as_json=as_json)
    raise typer.Exit(run_and_report(options, f"quintain run {folder / 'eval.yaml'} --output {results}"))


def copy_example(folder: Path) -> None:
    """Copy the example into a folder, over nothing that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    with resources.as_file(resources.files("quintain_cli") / "examples" / EXAMPLE_NAME) as example:
        for source in sorted(example.iterdir()):
            if source.is_file() and not (folder / source.name).exists():
                shutil.copyfile(source, folder / source.name)
