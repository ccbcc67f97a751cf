"""``quintain broker``: a user of the broker for each evaluator, host and group of workers."""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import replace
from typing import Annotated
from urllib.parse import quote

import typer

from quintain.errors import BusError, ConfigError
from quintain.settings import environment, read_settings
from quintain_cli.broker_management import (
    DEFAULT_VHOST,
    ROLES,
    USER_LIMITS,
    open_management,
    user_permissions,
    vhost_of,
)
from quintain_cli.console import AsJson, escape_for_terminal, exit_with_error, print_json, print_stderr, print_stdout
from quintain_cli.running_fleet import ask_admin

ManagementOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The management API; by default port 15672 (amqps: 15671) of the broker's host."),
]
VhostOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The virtual host, in place of that of QUINTAIN_BROKER_URL.")
]
PrintOption = Annotated[
    bool, typer.Option("--print", help="Change nothing; print definitions for `rabbitmqctl import_definitions`.")
]
OnlyOption = Annotated[
    list[str] | None, typer.Option(metavar="TARGET", help="A worker's or host's only target; repeatable.")
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user.")]

_HASHING = "rabbit_password_hashing_sha256"


def add_user(
    name: NameArgument,
    role: Annotated[str, typer.Option(help=f"What it is: {', '.join(ROLES)}.")],
    only: OnlyOption = None,
    management: ManagementOption = None,
    vhost: VhostOption = None,
    print_only: PrintOption = False,
    as_json: AsJson = False,
) -> None:
    """Add a user of the broker, with the permissions of its role alone; its password is printed once.

    A user that exists gets a new password, these permissions, and a limit of its connections and channels. What its
    workers may serve is recorded in the ledger too, with the admin token.
    """
    password = secrets.token_urlsafe(32)
    try:
        settings, permissions = read_settings(environment()), user_permissions(role, name, only or ())
    except ConfigError as error:
        exit_with_error(error, as_json=as_json)
    tags = "monitoring" if role == "operator" else ""
    if print_only:
        user = {"name": name, "password_hash": _hash(password), "hashing_algorithm": _HASHING, "tags": tags}
        granted = {"user": name, "vhost": vhost or _vhost_of_url(), **permissions}
        print_json({"users": [{**user, "limits": dict(USER_LIMITS)}], "permissions": [granted]})
        if role == "worker" and only:
            print_stderr(f"next     quintain broker limit {name} {' '.join(f'--only {target}' for target in only)}")
        print_stderr(f"password {password}")
        return
    if role == "worker" and (only or settings.admin_token is not None):
        # First: whatever fails after it, the user has no more rights than it is to have.
        ask_admin(lambda admin: admin.set_user(name, only or None), as_json=as_json)
    try:
        api = open_management(settings.require_broker_url(), management)
        api = api if vhost is None else replace(api, vhost=vhost)
        api.put(f"users/{quote(name, safe='')}", {"password": password, "tags": tags})
        for limit, value in USER_LIMITS.items():
            api.put(f"user-limits/{quote(name, safe='')}/{limit}", {"value": value})
        api.put(f"permissions/{{vhost}}/{quote(name, safe='')}", permissions)
    except (BusError, ConfigError) as error:
        exit_with_error(error, as_json=as_json)
    if as_json:
        print_json({"name": name, "role": role, "password": password, "vhost": api.vhost, **permissions})
        return
    print_stdout(f"added    {name}, as {role}, in the virtual host {api.vhost}\npassword {password}")
    path = "" if api.vhost == DEFAULT_VHOST else quote(api.vhost, safe="")
    print_stderr(f"next     QUINTAIN_BROKER_URL=amqp://{name}:PASSWORD@HOST/{path} for this {role} alone")


def limit_user(name: NameArgument, only: OnlyOption = None, as_json: AsJson = False) -> None:
    """Record in the ledger which targets a user's workers may serve; without --only, any. `add-user` does it itself."""
    rights = ask_admin(lambda admin: admin.set_user(name, only or None), as_json=as_json)
    if as_json:
        print_json(rights)
        return
    allowed = "any target" if rights.targets is None else f"{', '.join(rights.targets)} only"
    print_stdout(f"limited  {escape_for_terminal(f'{rights.user}: its workers may serve {allowed}')}")


def _vhost_of_url() -> str:
    """The virtual host of QUINTAIN_BROKER_URL; the default one where that is not set."""
    url = read_settings(environment()).broker_url
    return DEFAULT_VHOST if url is None else vhost_of(url)


def _hash(password: str) -> str:
    """The hash of a password as RabbitMQ keeps it: base64 of a salt and of SHA-256 over salt and password."""
    salt = secrets.token_bytes(4)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
