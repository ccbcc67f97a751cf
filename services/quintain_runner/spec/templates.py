"""Templates of prompts and graders, filled with the fields of a case. No I/O.

A template is written by the author of the evaluation, its values come with the dataset. Values are data: they are
inserted as they are, and none is a template. `template_language` says what a template may do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from quintain.errors import ConfigError
from quintain.graders import Case
from quintain.runtime.lazy_module import LazyModule
from quintain_runner.spec.choices import lettered

if TYPE_CHECKING:
    from quintain_runner.spec import template_language as language
else:
    language = LazyModule("quintain_runner.spec.template_language")


class TemplateError(ConfigError):
    """A template that a case does not fill; the message says where, and what is missing."""


def case_values(case: Case) -> dict[str, JsonValue]:
    """The fields of a case that are not null, by the names that they have in a row of the dataset."""
    told = case.model_dump(mode="json", include={"turns", "user"}, exclude_none=True) if case.is_conversation else {}
    if case.choices is not None:
        told |= {"choices": case.choices, "lettered_choices": lettered(case.choices)}
    own = {"id": case.id, "question": case.question, "system_prompt": case.system_prompt, "expected": case.expected}
    return {name: value for name, value in {**case.metadata, **told, **own}.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Template:
    """A text, ``compiled`` if it is a template.

    ``place`` says where it is, and ``fields`` are the names that it reads.
    """

    text: str
    compiled: language.CompiledTemplate | None = None
    fields: tuple[str, ...] = ()
    place: str = "the template"

    def render(self, case: Case, **more: JsonValue) -> str:
        """The text with the fields of this case, and with ``more``.

        Raises `TemplateError` if the case lacks something, and `ConfigError` for what the sandbox refuses.
        """
        if self.compiled is None:
            return self.text
        values = case_values(case)
        try:
            return language.render(self.compiled, {"case": values, **values, **more})
        except language.SecurityError as error:
            raise ConfigError(f"{self._place_of(error)}, case {case.id!r}: {error}") from None
        except Exception as error:
            # The expressions of a template raise whatever Python's operators and Jinja2's filters raise.
            raise TemplateError(f"{self._place_of(error)}: {error}") from None

    def _place_of(self, error: Exception) -> str:
        """Where its text is, with the line of an error."""
        line = None if self.compiled is None else language.line_of(self.compiled, error)
        return self.place if line is None else f"{self.place}, line {line}"


def parse_template(text: str, place: str = "the template") -> Template:
    """Compile a template. Raises `ValueError` with the line of what is wrong, and the mend."""
    return Template(text, *language.compile_template(text), place) if "{" in text else Template(text, place=place)
