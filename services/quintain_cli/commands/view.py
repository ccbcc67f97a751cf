"""``quintain view``: shows runs in a browser, on this machine only."""

from __future__ import annotations

import asyncio
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from quintain_cli.console import handle_stop_signals, print_json, print_stderr, run_command
from quintain_view.server import serve_view

#: Where `quintain run` writes results, if nothing else is said.
DEFAULT_FOLDER = Path("runs")


def view(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="Results folders, or folders of them; by default runs."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0 takes a free one.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser at the address.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON, and open nothing.")] = False,
) -> None:
    """Show runs in a browser, on this machine only.

    Every case with its answers, filters, labels and comparisons. The server answers on 127.0.0.1 only, and only to
    browsers that opened the printed address; it runs until Ctrl-C. Pages of runs that are under way update themselves.
    """
    run_command(
        _serve(folders or [DEFAULT_FOLDER], port=port, open_browser=open_browser and not as_json, as_json=as_json),
        as_json=as_json,
    )


async def _serve(folders: list[Path], *, port: int, open_browser: bool, as_json: bool) -> None:
    async with handle_stop_signals() as stop, serve_view(folders, port=port) as address:
        if as_json:
            print_json({"url": address})
        else:
            print_stderr(f"view     {address}")
            print_stderr("stop     Ctrl-C")
        if open_browser:
            await asyncio.to_thread(webbrowser.open, address)
        await stop.wait()
