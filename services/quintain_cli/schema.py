"""``quintain schema eval|config``: the JSON schemas of the two files a person writes, for editors."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated

import typer
from pydantic import JsonValue

from quintain.config.schema import config_schema
from quintain_runner.schema import evaluation_schema

app = typer.Typer(
    no_args_is_help=True,
    help="Print the JSON schema of a file, so that an editor completes it: # yaml-language-server: $schema=FILE.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Changes nothing: a schema is JSON.")]


@app.command("eval")
def evaluation(as_json: AsJson = False) -> None:
    """Print the JSON schema of an evaluation file, eval.yaml."""
    _print(evaluation_schema())


@app.command("config")
def config(as_json: AsJson = False) -> None:
    """Print the JSON schema of a configuration, quintain.yaml."""
    _print(config_schema())


def _print(schema: Mapping[str, JsonValue]) -> None:
    sys.stdout.write(json.dumps(schema, indent=2) + "\n")
