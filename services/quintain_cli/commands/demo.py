"""``quintain demo``: runs an example evaluation in this process, without an API key or a broker."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from quintain.errors import ConfigError
from quintain_cli.console import AsJson, exit_with_error, print_stderr
from quintain_cli.run_output import OutputFiles, run_and_report
from quintain_runner.engine.run_settings import RunOptions

#: The example that ships with the package; ``examples/capitals`` of the repository is the same folder.
EXAMPLE_NAME = "capitals"


def demo(
    folder: Annotated[Path, typer.Option(help="The folder for the example; existing files are kept.")] = Path(
        "quintain-demo"
    ),
    as_json: AsJson = False,
) -> None:
    """Run an example evaluation, without an API key or a broker.

    A dozen cases are answered by three targets and graded by two graders, all in this process.
    """
    try:
        copy_example(folder)
    except OSError as error:
        refused = ConfigError(f"{folder}: cannot be written ({error.strerror}): give another --folder")
        exit_with_error(refused, as_json=as_json)
    # The demo deletes the results of an earlier demo; only the demo writes to this folder.
    results = folder / "demo-results"
    shutil.rmtree(results, ignore_errors=True)
    if not as_json:
        print_stderr(f"demo     its files are in {folder}: change them, and run it again")
    options = RunOptions(
        path=folder / "eval.yaml",
        config=folder / "quintain.yaml",
        output=results,
        command=f"quintain run {folder / 'eval.yaml'} --output {results}",
    )
    raise typer.Exit(run_and_report(options, OutputFiles(), as_json=as_json))


def copy_example(folder: Path) -> None:
    """Copy the example's files but its README into a folder; existing files are not overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    with resources.as_file(resources.files("quintain_cli") / "examples" / EXAMPLE_NAME) as example:
        for source in sorted(example.iterdir()):
            if source.is_file() and source.suffix != ".md" and not (folder / source.name).exists():
                shutil.copyfile(source, folder / source.name)
