"""The JSON schema of the evaluation file, for validation and completion in editors. No I/O."""

from __future__ import annotations

from pydantic import JsonValue

from quintain_runner.spec.evaluation import EvaluationSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def evaluation_schema() -> dict[str, JsonValue]:
    """The JSON schema of ``eval.yaml``, including its short forms."""
    schema: dict[str, JsonValue] = EvaluationSpec.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": DIALECT, **schema, "title": "An evaluation of quintain run"}
