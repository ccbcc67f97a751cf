"""A JSON schema that an evaluation names: read, checked, and never completed from the network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jsonschema_rs
from jsonschema_rs import FancyRegexOptions, ValidationError, Validator
from pydantic import JsonValue

from quintain.errors import ConfigError
from quintain_runner.beside import read_beside
from quintain_runner.json_text import NoJson, read_json
from quintain_runner.patterns import MOST_BACKTRACKS


def validator_of(schema: str | Mapping[str, JsonValue], folder: Path) -> Validator:
    """The validator of a schema, or of the file of this path. Raises `ConfigError`."""
    where = "schema"
    content: object = schema
    if isinstance(schema, str):
        where = f"schema {schema}"
        try:
            content = read_json(read_beside(folder, schema))
        except NoJson as no_json:
            raise ConfigError(f"{where}: it is no JSON: {no_json}") from None
    if not isinstance(content, Mapping | bool):
        raise ConfigError(f"{where}: a JSON schema is an object, such as {{type: object}}")
    bounds = FancyRegexOptions(backtrack_limit=MOST_BACKTRACKS)
    try:
        return jsonschema_rs.validator_for(
            content if isinstance(content, bool) else dict(content), mask="it", pattern_options=bounds, offline=True
        )
    except ValidationError as error:
        place = ".".join(str(part) for part in error.instance_path)
        raise ConfigError(f"{where}: it is no JSON schema: {f'{place}: ' if place else ''}{error.message}") from None
