"""``quintain target pause|resume``: whether anybody calls a target, over the whole fleet, with the admin token."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from quintain.client.admin import Admin
from quintain.contracts.operating import LONGEST_PAUSE_SECONDS, TargetPause
from quintain_cli.fleet_admin import fleet_admin
from quintain_cli.screen import out, plain, print_json, run_command, tell
from quintain_cli.status_tables import DAY, HOUR, MINUTE, lasting

AsJson = Annotated[bool, typer.Option("--json", help="Print only the answer, as JSON.")]
TargetArgument = Annotated[str, typer.Argument(metavar="NAME", help="The target.")]

UNITS = {"": 1, "s": 1, "m": MINUTE, "min": MINUTE, "h": HOUR, "d": DAY}

#: What an answer may say more than was asked for, where it is no longer pause that was there already, in seconds.
SLACK_SECONDS = 1.0


def seconds_of(text: str) -> float:
    """A time such as 90s, 10m or 2h, in seconds. Raises `typer.BadParameter`."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(s|m|min|h|d|)", text.strip())
    seconds = float(found[1]) * UNITS[found[2]] if found else math.nan
    if not 0 < seconds <= LONGEST_PAUSE_SECONDS:
        raise typer.BadParameter("a time is a number with s, m, h or d behind it, such as 90s or 10m: a day at most")
    return seconds


def pause(
    name: TargetArgument,
    seconds: Annotated[
        float, typer.Option("--for", metavar="TIME", parser=seconds_of, help="How long: 90s, 10m, 2h; a day at most.")
    ],
    as_json: AsJson = False,
) -> None:
    """Nobody calls a target for this long. What runs is finished, what comes waits in its queue, until its deadline."""
    answer = run_command(_asked(lambda admin: admin.pause(name, seconds)), as_json=as_json)
    if as_json:
        print_json(answer)
        return
    left = ((answer.paused_until or answer.now) - answer.now) / 1000
    out().print(f"paused   {plain(answer.target)} for {lasting(left)}", markup=False, soft_wrap=True)
    if left > seconds + SLACK_SECONDS:
        tell("note     it was paused for longer already, by its provider or by you: `resume` ends that too")
    tell(f"next     quintain target resume {plain(answer.target)}")


def resume(name: TargetArgument, as_json: AsJson = False) -> None:
    """End a target's pause, its provider's too: a provider that still wants one says so with its next answer."""
    answer = run_command(_asked(lambda admin: admin.resume(name)), as_json=as_json)
    if as_json:
        print_json(answer)
        return
    out().print(f"resumed  {plain(answer.target)}: workers hear of it within 3 s", markup=False, soft_wrap=True)
    tell("next     quintain status")


async def _asked(ask: Callable[[Admin], Awaitable[TargetPause]]) -> TargetPause:
    async with fleet_admin() as admin:
        return await ask(admin)
