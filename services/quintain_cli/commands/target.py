"""``quintain target pause|resume``: pauses a target for all workers, with the admin token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from quintain.client.admin import Admin
from quintain.contracts.session import TargetPause
from quintain.fleet.tables import duration
from quintain_cli.console import (
    AsJson,
    escape_for_terminal,
    parse_duration_seconds,
    print_json,
    print_stderr,
    run_command,
    stdout_console,
)
from quintain_cli.running_fleet import open_fleet_admin

TargetArgument = Annotated[str, typer.Argument(metavar="NAME", help="The target.")]

#: How much longer than requested a pause may be before it is taken for an earlier, longer pause, in seconds.
PAUSE_TOLERANCE_SECONDS = 1.0


def pause(
    name: TargetArgument,
    seconds: Annotated[
        float,
        typer.Option(
            "--for",
            metavar="TIME",
            parser=parse_duration_seconds,
            help="The duration, such as 90s, 10m or 2h; one day at most.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Pause a target for all workers for the given time. Running calls are finished; new calls wait in the target's
    queue until their deadline.
    """
    target_pause = run_command(_run_with_admin(lambda admin: admin.pause(name, seconds)), as_json=as_json)
    if as_json:
        print_json(target_pause)
        return
    remaining_ms = (target_pause.paused_until or target_pause.now) - target_pause.now
    stdout_console().print(
        f"paused   {escape_for_terminal(target_pause.target)} for {duration(remaining_ms)}",
        markup=False,
        soft_wrap=True,
    )
    if remaining_ms / 1000 > seconds + PAUSE_TOLERANCE_SECONDS:
        print_stderr(
            "note     it was already paused for longer, by its provider or by an administrator: `resume` ends that too"
        )
    print_stderr(f"next     quintain target resume {escape_for_terminal(target_pause.target)}")


def resume(name: TargetArgument, as_json: AsJson = False) -> None:
    """End a target's pause, also one that its provider requested. The provider's next answer may request it again."""
    target_pause = run_command(_run_with_admin(lambda admin: admin.resume(name)), as_json=as_json)
    if as_json:
        print_json(target_pause)
        return
    stdout_console().print(
        f"resumed  {escape_for_terminal(target_pause.target)}: workers get it within 3 s",
        markup=False,
        soft_wrap=True,
    )
    print_stderr("next     quintain status")


async def _run_with_admin(action: Callable[[Admin], Awaitable[TargetPause]]) -> TargetPause:
    async with open_fleet_admin() as admin:
        return await action(admin)
