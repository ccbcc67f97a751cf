"""Every template prints hostile values as text that is seen: each is rendered with nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jinja2
import pytest
from jinja2 import nodes
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Macro

from quintain.web import template_environment
from quintain_gateway import fleet_page
from quintain_view import render

HOSTILE = "\x1b[2J\u202e<img src=x onerror=alert(1)>\u200b\"'&"

#: Hostile values have no parts below this, so that a template that calls itself ends.
DEPTH = 9


#: What Python and the filters of templates ask of a text itself.
OF_TEXT = {"depth", "encode", "isascii", "isprintable", "join", "replace", "split", "translate"}


class Hostile(str):
    """A text that also has every attribute, item, part and result, all of them hostile."""

    depth: int

    def __new__(cls, depth: int = 0) -> Hostile:
        made = super().__new__(cls, HOSTILE)
        made.depth = depth
        return made

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name in OF_TEXT:
            return super().__getattribute__(name)
        return Hostile(self.depth + 1)

    def __call__(self, *_: object, **__: object) -> Hostile:
        return Hostile(self.depth + 1)

    def __iter__(self) -> Iterator[Any]:
        return iter([Hostile(self.depth + 1)] if self.depth < DEPTH else [])

    def __format__(self, _: str) -> str:
        return HOSTILE

    def __float__(self) -> float:
        return 1.0

    def __index__(self) -> int:
        return 1

    def __lt__(self, _: object) -> bool:
        return True

    def __contains__(self, _: object) -> bool:
        return False

    def _number(self, *_: object) -> float:
        return 1.0

    __getitem__ = __call__
    __gt__ = __le__ = __ge__ = __lt__
    __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __floordiv__ = __neg__ = _number
    __add__ = __radd__ = __call__


def several(value: object, target: nodes.Tuple) -> object:
    """What a loop goes through whose names are these."""

    def made(name: nodes.Expr, depth: int) -> object:
        return tuple(made(one, depth) for one in name.items) if isinstance(name, nodes.Tuple) else Hostile(depth)

    if isinstance(value, zip):
        return [made(target, DEPTH)]
    return [made(target, one.depth) for one in value] if isinstance(value, Hostile) else value


#: The names of the loops that take several values at once.
TARGETS: list[nodes.Tuple] = []


def without_conditions(tree: nodes.Template) -> nodes.Template:
    """The template that prints all that it may print, whatever the conditions."""
    for branch in list(tree.find_all(nodes.If)):
        branch.body += [node for other in branch.elif_ for node in other.body] + branch.else_
        branch.test, branch.elif_, branch.else_ = nodes.Const(True), [], []
    for loop in list(tree.find_all(nodes.For)):
        if isinstance(loop.target, nodes.Tuple):
            TARGETS.append(loop.target)
            number = nodes.Const(len(TARGETS) - 1)
            loop.iter = nodes.Filter(loop.iter, "several", [number], [], None, None, lineno=loop.lineno)
        loop.test = None
    return tree


def hostile_environment(real: jinja2.Environment) -> jinja2.Environment:
    parse = real._parse
    environment = real.overlay()
    environment._parse = lambda *words: without_conditions(parse(*words))
    environment.cache = {}
    environment.filters["several"] = lambda value, number: several(value, TARGETS[number])
    return environment


def hostile_values(environment: jinja2.Environment) -> dict[str, Hostile]:
    """A value of every name that a template has from its page."""
    sources = (environment.loader.get_source(environment, name)[0] for name in environment.list_templates())
    names = set().union(*(find_undeclared_variables(environment.parse(source)) for source in sources))
    return {name: Hostile() for name in names - environment.globals.keys()}


VIEW, FLEET = hostile_environment(render._environment()), hostile_environment(fleet_page._environment())
PAGES = [(VIEW, name) for name in VIEW.list_templates()] + [(FLEET, name) for name in FLEET.list_templates()]


@pytest.mark.parametrize(("environment", "name"), PAGES, ids=[name for _, name in PAGES])
def test_a_template_prints_no_hostile_value_as_it_is(environment: jinja2.Environment, name: str) -> None:
    values = hostile_values(environment)
    template = environment.get_template(name)
    printed = template.render(**values)
    for macro in vars(template.make_module(values)).values():
        if isinstance(macro, Macro):
            printed += str(macro(*(Hostile() for _ in macro.arguments)))
    assert "<img src=x" not in printed
    # The values of forms go back as they were.
    shown = re.sub(r'value="[^"]*"|(?s:<textarea.*?</textarea>)', "", printed)
    assert not re.search("[\x1b\u202e\u200b]", shown)


def test_a_value_that_is_marked_as_exact_is_escaped_and_keeps_its_invisible_characters() -> None:
    template = template_environment("quintain_view").from_string("{{ text }} {{ text | exact }} {{ 1 }} {{ none }}")
    assert template.render(text="<\u202e>") == "&lt;⟦U+202E⟧&gt; &lt;\u202e&gt; 1 None"
