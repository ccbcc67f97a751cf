"""JSON schemas of the files that people write, in which each field is described by the string below it."""

from __future__ import annotations

import ast
import inspect
import textwrap

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema


class DescribedSchema(GenerateJsonSchema):
    """Describes each field of a model by the string below it.

    pydantic's ``use_attribute_docstrings`` does so by reading the source of each class when that is made, which took a
    tenth of the start of a run.
    """

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """Make the schema of a model."""
        made, model = super().model_schema(schema), schema["cls"]
        texts: dict[str, str | None] = {}
        for base in reversed(model.__mro__):
            if issubclass(base, BaseModel) and base is not BaseModel:
                texts |= _descriptions(base)
        for name, field in model.model_fields.items():
            if (text := texts[name]) is not None:
                made["properties"][field.alias or name]["description"] = text
        return made


def _descriptions(model: type[BaseModel]) -> dict[str, str | None]:
    """The string below each field that the class itself declares; None where there is none."""
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(body, ast.ClassDef), "the source of a class"
    found: dict[str, str | None] = {}
    for node, below in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else None
            found[node.target.id] = inspect.cleandoc(text) if isinstance(text, str) else None
    return found
