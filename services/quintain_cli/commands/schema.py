"""``quintain schema``: prints the JSON schemas of evaluation and configuration files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated

import typer
from pydantic import JsonValue

from quintain.config.loader import config_schema
from quintain_runner.spec.evaluation import evaluation_schema

AsJson = Annotated[bool, typer.Option("--json", help="No effect: the output is always JSON.")]


def evaluation(as_json: AsJson = False) -> None:
    """Print the JSON schema of an evaluation file, eval.yaml."""
    _print_schema(evaluation_schema())


def config(as_json: AsJson = False) -> None:
    """Print the JSON schema of a configuration, quintain.yaml."""
    _print_schema(config_schema())


def _print_schema(schema: Mapping[str, JsonValue]) -> None:
    sys.stdout.write(json.dumps(schema, indent=2) + "\n")
