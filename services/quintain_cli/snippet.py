"""``quintain snippet TOOL``: how another tool is told of this session, ready to paste."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from quintain.client.connect import connect
from quintain.contracts.metadata import Info
from quintain.errors import ConfigError, UnknownTarget
from quintain.settings import environment, read_settings
from quintain_cli.screen import print_json, run_command, tell
from quintain_cli.snippets import SNIPPETS, Door, Tool

_CONNECT_SECONDS = 10.0


def snippet(
    tool: Annotated[Tool, typer.Argument(help="The tool.")],
    target: Annotated[str | None, typer.Option(help="The target it asks; the session's default if absent.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the parts, as JSON.")] = False,
) -> None:
    """Print what a tool is given to ask a target through the gateway. Takes QUINTAIN_GATEWAY_URL and
    QUINTAIN_SESSION_TOKEN; the text has the token in it."""
    door, info = run_command(_found(target), as_json=as_json)
    made = SNIPPETS[tool](door)
    if as_json:
        print_json({"tool": tool.value, "target": door.target, **made.facts()})
        return
    sys.stdout.write(f"{made.lines()}\n")
    left = max(0, info.max_calls - info.call_count)
    tell(f"note   it holds the session's token: who has that may spend the {left} calls that are left")


async def _found(target: str | None) -> tuple[Door, Info]:
    """The session's door, its token proven, and the session. Raises `ConfigError`, `UnknownTarget`, `Unauthorized`."""
    settings = read_settings(environment())
    url, token = settings.gateway_url, settings.session_token
    if url is None:
        raise ConfigError(
            "QUINTAIN_GATEWAY_URL is not set: other tools speak HTTP, to `quintain serve gateway` or `quintain up`, "
            "such as http://127.0.0.1:8787"
        )
    async with connect(url, token, timeout_seconds=_CONNECT_SECONDS) as client:
        info = await client.get_info()
    assert token is not None, "nobody connects without one"
    name = target or info.target_name
    if name not in info.available_targets:
        known = ", ".join(info.available_targets)
        raise UnknownTarget(f"Unknown target '{name}'. Available: {known}", available_targets=info.available_targets)
    return Door(url=url.rstrip("/"), token=token, target=name), info
