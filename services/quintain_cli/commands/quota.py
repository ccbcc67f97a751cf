"""``quintain quota list|show|set``: what provider keys may use in the whole fleet, with the admin token."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer
from pydantic import ValidationError

from quintain.contracts.fleet import QuotaList, QuotaSettings, QuotaState, SetQuota
from quintain.contracts.fleet_figures import QuotaStatus
from quintain.contracts.message import describe_validation_error
from quintain.contracts.quota import MAX_IN_FLIGHT
from quintain.errors import ConfigError
from quintain.fleet.tables import NOTHING, quota_table
from quintain_cli.console import (
    AsJson,
    escape_for_terminal,
    print_json,
    print_stderr,
    print_stdout,
    print_table,
    run_command,
)
from quintain_cli.running_fleet import ask_admin, run_with_admin

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The quota, by its name or its id.")]


def list_quotas(as_json: AsJson = False) -> None:
    """List the quotas of the fleet: what provider keys may use, and why calls wait for them."""
    quotas = ask_admin(lambda admin: admin.quotas(), as_json=as_json)
    if as_json:
        print_json(quotas)
        return
    _print_quotas(quotas.quotas, quotas.now)
    if quotas.quotas:
        print_stderr(f"next     quintain quota show {_quoted(quotas.quotas[0].name)}")
    else:
        print_stderr("note     no worker serves a model, or a target that names a quota")
        print_stderr("next     quintain status")


def show_quota(name: NameArgument, as_json: AsJson = False) -> None:
    """Show one quota. Exit code 2 if there is no such quota."""
    quotas, quota = run_command(_find(name), as_json=as_json)
    if as_json:
        print_json(quota)
        return
    _print_quotas([quota], quotas.now)
    print_stderr(f"next     quintain quota set {_quoted(quota.name)} --requests-per-minute NUMBER --reason TEXT")


def set_quota(
    name: NameArgument,
    reason: Annotated[str, typer.Option(help="Why, for the record in the ledger.")],
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=MAX_IN_FLIGHT, help="The most calls in flight, in the whole fleet.")
    ] = None,
    requests_per_minute: Annotated[float | None, typer.Option(help="The most requests a minute.")] = None,
    tokens_per_minute: Annotated[
        float | None, typer.Option(help="The most tokens a minute, of questions and answers.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="What was set before goes; workers' configurations count again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Set what a quota may use, within two seconds and until it is set again. Running calls are not ended.

    What is not named stays as it is.
    """
    if not reset and concurrency is requests_per_minute is tokens_per_minute is None:
        raise typer.BadParameter("name --concurrency, --requests-per-minute, --tokens-per-minute or --reset")
    try:
        request = SetQuota(
            quota=name,
            concurrency=concurrency,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            reset=reset,
            reason=reason,
        )
    except ValidationError as error:
        raise typer.BadParameter(describe_validation_error(error)) from None
    settings = ask_admin(lambda admin: admin.set_quota(request), as_json=as_json)
    if as_json:
        print_json(settings)
        return
    print_stdout(_settings_line(settings))
    print_stderr(f"next     quintain quota show {_quoted(settings.name)}")


async def _find(name: str) -> tuple[QuotaList, QuotaState]:
    quotas = await run_with_admin(lambda admin: admin.quotas())
    found = [quota for quota in quotas.quotas if name in {quota.id, quota.name}]
    if len(found) == 1:
        return quotas, found[0]
    names = ", ".join(quota.id if found else quota.name for quota in found or quotas.quotas) or "none"
    raise ConfigError(
        f"{'Several quotas have this name' if found else 'There is no quota'} {name!r}: there are {names}"
    )


def _print_quotas(quotas: list[QuotaState], now_ms: int) -> None:
    table = quota_table(QuotaStatus.of(quota, now_ms) for quota in quotas)
    print_table(
        [[cell.line for cell in row.cells] for row in table.rows], [column.title.lower() for column in table.columns]
    )


def _settings_line(settings: QuotaSettings) -> str:
    numbers = {
        "calls in flight": settings.concurrency,
        "requests/min": settings.requests_per_minute,
        "tokens/min": settings.tokens_per_minute,
    }
    said = ", ".join(
        f"{NOTHING if number is None else format(number, ',g')} {what}" for what, number in numbers.items()
    )
    return f"set      {escape_for_terminal(settings.name)}: {said}; - is what the workers' configuration says"


def _quoted(name: str) -> str:
    return shlex.quote(escape_for_terminal(name))
