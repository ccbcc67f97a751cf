"""The language of templates: Jinja2's in its sandbox. No I/O.

The sandbox keeps a template from Python's attributes; loops and the text are bounded.
"""

from __future__ import annotations

import functools
import json
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, nodes, pass_context
from jinja2 import Template as CompiledTemplate
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quintain.contracts.message import MAX_BODY_BYTES

__all__ = ["CompiledTemplate", "SecurityError", "compile_template", "line_of", "render"]

#: What one rendering may spend, against mistakes: each character that it prints costs 1, as many as the largest request
#: has, and each item of a loop so much that there are at most 200,000.
_BUDGET = MAX_BODY_BYTES
_STEP_COST = _BUDGET // 200_000

#: The name of a rendering's budget among its values; no template can write it.
_SPENT: Final = ""

#: White space that Jinja2 leaves alone. One that a text does not have stands for its carriage returns.
_SUBSTITUTES: Final = "\x1f\x1e\x1d\x1c\x0c\x0b\x85\xa0\u2028\u2029"

_MEND: Final = 'braces that are text are written {{ "{{" }}, or between {% raw %} and {% endraw %}'


@functools.lru_cache(maxsize=512)
def compile_template(text: str) -> tuple[CompiledTemplate, tuple[str, ...]]:
    """Compile a template; return it and the names that it reads. Raises `ValueError` with the line and the mend."""
    # Jinja2 makes one line end of all.
    substitute = next((each for each in _SUBSTITUTES if each not in text), "\r")
    try:
        tree = _prepare(_ENVIRONMENT.parse(text.replace("\r", substitute)), substitute)
        return _ENVIRONMENT.from_string(tree), tuple(sorted(find_undeclared_variables(tree)))
    except TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno}: {str(error.message).rstrip('.')}; {_MEND}") from None
    except (RecursionError, SyntaxError):
        raise ValueError("its blocks or brackets are nested too deeply") from None


def render(template: CompiledTemplate, values: Mapping[str, object]) -> str:
    """The text with these values. Raises `SecurityError` for what the sandbox refuses, and what expressions raise."""
    context = template.new_context({**values, _SPENT: [0]})
    pieces: list[str] = []
    for piece in template.root_render_func(context):
        _spend(context, len(piece))
        pieces.append(piece)
    return "".join(pieces)


def line_of(template: CompiledTemplate, error: Exception) -> int | None:
    """The line of a template at which its rendering raised an error; None if it was elsewhere."""
    steps = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in steps if frame.f_globals.get("__jinja_template__") is template]
    return template.get_corresponding_lineno(lines[-1]) if lines else None


def _prepare(tree: nodes.Template, substitute: str) -> nodes.Template:
    """Put carriage returns back, count the items of loops, and let ``~`` print as all else. Refuse other templates."""
    for reading in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        name = type(reading).__name__.removeprefix("From").lower()
        raise TemplateSyntaxError(f"a template reads no other, so {name} is not possible", reading.lineno)
    for data in list(tree.find_all(nodes.TemplateData)):
        data.data = data.data.replace(substitute, "\r")
    for constant in list(tree.find_all(nodes.Const)):
        if isinstance(constant.value, str):
            constant.value = constant.value.replace(substitute, "\r")
    for loop in list(tree.find_all(nodes.For)):
        loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
    for concat in list(tree.find_all(nodes.Concat)):
        concat.nodes = [nodes.Filter(part, "string", [], [], None, None, lineno=part.lineno) for part in concat.nodes]
    return tree


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox, in which a key of an object comes before its methods."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        return obj[attribute] if isinstance(obj, dict) and attribute in obj else super().getattr(obj, attribute)


def _spend(context: Context, cost: int) -> None:
    spent = context.parent[_SPENT]
    spent[0] += cost
    if spent[0] > _BUDGET:
        raise SecurityError("it prints more than the largest request holds, or takes too many steps")


@pass_context
def _counted(context: Context, items: Iterable[object]) -> Iterator[object]:
    for item in items:
        _spend(context, _STEP_COST)
        yield item


@pass_context
def _print(context: Context, value: object) -> str:
    """What a value prints as: text as it is, others as JSON. Null alone is an error, and so is what is no value."""
    if value is None:
        raise TypeError("null has no text; write what stands for it, such as {{ field or 'none' }}")
    text = str(value) if isinstance(value, str | Undefined) else _to_json(value)
    _spend(context, len(text))
    return text


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_no_json, indent=indent)


def _no_json(value: object) -> str:
    if isinstance(value, Undefined):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no text; write | list after a filter, and () after a method")


@pass_context
def _join(context: Context, value: Iterable[object], d: str = "", attribute: str | None = None) -> str:
    items = value if attribute is None else map(make_attrgetter(context.environment, attribute), value)
    return d.join(_print(context, item) for item in items)


_ENVIRONMENT: Final = _Sandbox(undefined=StrictUndefined, finalize=_print, keep_trailing_newline=True)
_ENVIRONMENT.filters |= {"counted": _counted, "join": _join, "string": _print, "tojson": _to_json}
# What differs from one rendering to the next would be another question of each run.
del _ENVIRONMENT.filters["random"], _ENVIRONMENT.globals["lipsum"]
