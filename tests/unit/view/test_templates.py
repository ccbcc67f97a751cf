"""Every template prints values as text that is seen: escaped, without invisible characters, within quotes."""

from __future__ import annotations

import re

import jinja2
import pytest
from jinja2 import nodes

from quintain_gateway import fleet_page
from quintain_view import render

ENVIRONMENTS = (render._environment(), fleet_page._environment())
TEMPLATES = [(one, name) for one in ENVIRONMENTS for name in one.list_templates()]


@pytest.mark.parametrize(("environment", "name"), TEMPLATES, ids=[name for _, name in TEMPLATES])
def test_no_template_prints_a_value_as_it_is(environment: jinja2.Environment, name: str) -> None:
    source, *_ = environment.loader.get_source(environment, name)
    tree = environment.parse(source)
    assert [
        one for one in tree.find_all(nodes.Filter) if one.name == "safe" and not isinstance(one.node, nodes.Const)
    ] == []
    assert [*tree.find_all((nodes.MarkSafe, nodes.MarkSafeIfAutoescape, nodes.EvalContextModifier))] == []
    assert re.findall(r"<[^>]*=\{[{%]", source) == [], "an attribute without quotes"
    # The values of forms go back as they were.
    shown = re.sub(r'value="\{\{.*?\}\}"|(?s:<textarea.*?</textarea>)', "", source)
    assert "exact" not in re.findall(r"\|\s*(\w+)", shown)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=["view", "fleet"])
def test_a_value_is_escaped_and_what_is_invisible_is_shown_unless_it_goes_back_exactly(
    environment: jinja2.Environment,
) -> None:
    template = environment.from_string("{{ text }} {{ text | exact }} {{ 1 }} {{ none }}")
    assert template.render(text="<\u202e>\"'") == "&lt;⟦U+202E⟧&gt;&#34;&#39; &lt;\u202e&gt;&#34;&#39; 1 None"
