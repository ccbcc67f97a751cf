"""``quintain record export|import``: the recording of a run as lines of JSON, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from quintain.errors import ConfigError, QuintainError
from quintain_cli.console import AsJson, exit_with_error, print_json, print_stderr
from quintain_runner.engine.recording import open_recording
from quintain_runner.engine.recording_lines import lines_of, read_lines
from quintain_runner.files import atomic_write
from quintain_runner.results.answer_store import AnswerStore

RecordingArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or a recording of one.")]


def export_lines(
    recording: RecordingArgument,
    output: Annotated[Path, typer.Option(help="The file to write.")],
    as_json: AsJson = False,
) -> None:
    """Write every request of a run with its answer as a line of JSON, without secrets.

    Exit code 2 if there is no such recording.
    """
    with _exit_on_error(as_json=as_json), open_recording(recording) as opened, atomic_write(output) as file:
        count = 0
        for line in lines_of(opened):
            file.write(f"{line}\n".encode())
            count += 1
    # The first line is that of the run, and the last one ends it.
    _print(output, count - 2, as_json=as_json)


def import_lines(
    lines: Annotated[Path, typer.Argument(metavar="FILE", help="The lines of a recording.")],
    output: Annotated[Path, typer.Option(help="The recording to make, for --replay.")],
    as_json: AsJson = False,
) -> None:
    """Make a recording of lines that `quintain record export` wrote. Exit code 2 if they are none."""
    with _exit_on_error(as_json=as_json):
        if output.exists():
            raise ConfigError(f"{output}: it is there already; name another file")
        try:
            file = lines.open("rb")
        except OSError as error:
            raise ConfigError(f"{lines}: it cannot be read ({error.strerror})") from None
        made = output.with_name(f".{output.name}.new")
        try:
            with file, contextlib.closing(AnswerStore.open(made)) as store:
                count = read_lines(file, lines, store)
                store.seal()
            made.replace(output)
        finally:
            for suffix in ("", "-wal", "-shm"):
                made.with_name(f"{made.name}{suffix}").unlink(missing_ok=True)
    _print(output, count, as_json=as_json)


@contextlib.contextmanager
def _exit_on_error(*, as_json: bool) -> Iterator[None]:
    try:
        yield
    except QuintainError as error:
        exit_with_error(error, as_json=as_json)


def _print(output: Path, count: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(output), "answers": count})
    else:
        print_stderr(f"record   {count:,} answers in {output}")
