"""Prompts of an evaluation file: templates with the fields of a case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from quintain.config.file_errors import config_error, validation_messages
from quintain.config.yaml_file import read_yaml
from quintain.contracts.invoke import ChatMessage
from quintain.graders import Case
from quintain_runner.files import read_text_file
from quintain_runner.spec.choices import ASKS_FOR_A_LETTER, CHOICE_FIELDS, lettered
from quintain_runner.spec.grader_options import GraderName, NonEmptyString, SpecModel, TemplateText
from quintain_runner.spec.templates import Template, case_values, parse_template


def case_field(case: Case, name: str) -> JsonValue:
    """The value of a field of a case, or None if it is absent.

    Names are those of the dataset's row; dots lead into nested objects.
    """
    values = case_values(case)
    value: JsonValue = values
    if name in values:
        return values[name]
    for part in name.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


#: The beginning of a text that is the path of a file, as in promptfoo.
FILE_PREFIX: Final = "file://"

#: Files with these suffixes hold a list of messages; all others hold the user's message. YAML reads JSON.
_MESSAGES_SUFFIXES = frozenset({".json", ".yaml", ".yml"})


class PromptMessage(SpecModel):
    """One message of a prompt."""

    role: Literal["system", "user", "assistant"]
    """Who speaks."""
    content: TemplateText
    """The text, a template."""


class PromptSpec(SpecModel):
    """What a target is asked about a case: texts in which {{ field }} stands for a field of the case, or files that
    hold such texts (file://path, relative to the evaluation file's folder).
    """

    name: GraderName | None = None
    """The name of the prompt in the results. If absent, the file's name without its suffix, or else prompt- and the
    position in the list.
    """
    system: NonEmptyString | None = None
    """The system prompt; it replaces that of the case."""
    user: NonEmptyString | None = None
    """The user's message; it replaces question and messages of the case."""
    messages: Annotated[list[PromptMessage], Field(min_length=1)] | None = None
    """The conversation; it replaces question and messages of the case."""
    file: NonEmptyString | None = None
    """The path of a file with the user's message, or of a .json or .yaml file with a list of messages."""

    @field_validator("system", "user")
    @classmethod
    def _is_template(cls, text: str | None) -> str | None:
        if text is not None and not text.startswith(FILE_PREFIX):
            parse_template(text)
        return text

    @model_validator(mode="after")
    def _asks_one_way(self) -> Self:
        """Check that at most one of the user's message, the conversation and the file is given, and not nothing."""
        given = [key for key in ("user", "messages", "file") if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: give one of them")
        if not given and self.system is None:
            raise ValueError(
                'it asks nothing; give user (such as "Answer briefly: {{ question }}"), messages or system'
            )
        return self

    def named(self, position: int) -> str:
        """The name, or the default one; ``position`` counts from 1."""
        if self.name is not None:
            return self.name
        path = self.file or (self.user or "").removeprefix(FILE_PREFIX)
        is_file = self.file is not None or (self.user or "").startswith(FILE_PREFIX)
        return PurePosixPath(path).stem if is_file else f"prompt-{position}"


def _expand_short_form(prompt: object) -> object:
    """Turn a text into the user's message, and ``file://path`` into a file."""
    if not isinstance(prompt, str):
        return prompt
    return {"file": prompt.removeprefix(FILE_PREFIX)} if prompt.startswith(FILE_PREFIX) else {"user": prompt}


#: A `PromptSpec` that may also be written as the user's message alone, or as ``file://path``.
PromptField = Annotated[
    PromptSpec, BeforeValidator(_expand_short_form, json_schema_input_type=NonEmptyString | PromptSpec)
]

_MESSAGES = TypeAdapter(Annotated[list[PromptMessage], Field(min_length=1)], config=ConfigDict(defer_build=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt whose files were read. ``name`` is None for the one that asks the case as it is.

    A part that is None leaves that of the case.
    """

    name: str | None = None
    system: Template | None = None
    user: Template | None = None
    messages: tuple[tuple[Literal["system", "user", "assistant"], Template], ...] | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the case that it names, without duplicates."""
        return tuple(dict.fromkeys(field for template in self._templates() for field in template.fields))

    @property
    def asks_the_case(self) -> bool:
        """Whether the question or the messages of the case are asked."""
        return self.user is None and self.messages is None

    def apply(self, case: Case) -> Case:
        """The case as it is asked: with the texts of this prompt in place of its own."""
        changes: dict[str, object] = {}
        if self.system is not None:
            changes["system_prompt"] = self.system.render(case)
        if self.user is not None:
            changes |= {"question": self.user.render(case), "messages": None}
        elif self.messages is not None:
            rendered = [ChatMessage(role=role, content=text.render(case)) for role, text in self.messages]
            changes |= {"question": None, "messages": rendered}
        if case.choices is not None and not self._shows_choices:
            asked = case.model_copy(update=changes)
            changes |= _with_text(asked, f"{lettered(case.choices)}\n\n{ASKS_FOR_A_LETTER}")
        return case.model_copy(update=changes) if changes else case

    @property
    def _shows_choices(self) -> bool:
        """Whether one of its texts shows the choices of a case itself."""
        return any(field.removeprefix("case.").partition(".")[0] in CHOICE_FIELDS for field in self.fields)

    def _templates(self) -> Iterator[Template]:
        yield from (template for template in (self.system, self.user) if template is not None)
        yield from (template for _, template in self.messages or ())


def _with_text(case: Case, text: str) -> dict[str, object]:
    """The question or the messages of a case with a text at the end of what the user says last."""
    if case.question is not None:
        return {"question": f"{case.question}\n\n{text}"}
    messages = [*(case.messages or ())]
    if not messages or (last := messages[-1]).role != "user":
        return {"messages": [*messages, ChatMessage(role="user", content=text)]}
    said: str | list[dict[str, JsonValue]] = (
        f"{last.content}\n\n{text}"
        if isinstance(last.content, str)
        else [*last.content, {"type": "text", "text": f"\n\n{text}"}]
    )
    return {"messages": [*messages[:-1], last.model_copy(update={"content": said})]}


#: Asks every case as it is: what an evaluation without ``prompts`` does.
CASE_AS_IT_IS: Final = Prompt()


def load_prompts(specs: Sequence[PromptSpec], folder: Path) -> tuple[Prompt, ...]:
    """The prompts of an evaluation file, with their files read; `CASE_AS_IT_IS` alone if it has none.

    Raises `ConfigError` if a file cannot be read or is not a prompt.
    """
    return tuple(_load(spec, spec.named(number), folder) for number, spec in enumerate(specs, start=1)) or (
        CASE_AS_IT_IS,
    )


def _load(spec: PromptSpec, name: str, folder: Path) -> Prompt:
    place, messages, user = f"the prompt {name}", spec.messages, spec.user
    if spec.file is not None:
        path = spec.file.removeprefix(FILE_PREFIX)
        if PurePosixPath(path).suffix.lower() in _MESSAGES_SUFFIXES:
            messages, place = _read_messages(folder / path), f"{place} ({path})"
        else:
            user = FILE_PREFIX + path
    said = [
        (message.role, parse_template(message.content, f"{place}, message {number}"))
        for number, message in enumerate(messages or (), start=1)
    ]
    return Prompt(
        name=name,
        system=_template(spec.system, folder, f"{place}, system"),
        user=_template(user, folder, place),
        messages=tuple(said) or None,
    )


def _template(text: str | None, folder: Path, place: str) -> Template | None:
    """The template of a text, or of the file that it names."""
    if text is None or not text.startswith(FILE_PREFIX):
        return None if text is None else parse_template(text, place)
    path = text.removeprefix(FILE_PREFIX)
    content = read_text_file(folder, path)
    if not content.strip():
        raise config_error(folder / path, ["the prompt is empty"])
    # A comment keeps the numbers of the lines.
    skipped = content[: len(content) - len(content.lstrip())].count("\n")
    comment = f"{{#{skipped * chr(10)}#}}" if skipped else ""
    try:
        return parse_template(comment + content.strip(), f"{place} ({path})")
    except ValueError as error:
        raise config_error(folder / path, [str(error)]) from None


def _read_messages(path: Path) -> list[PromptMessage]:
    try:
        return _MESSAGES.validate_python(read_yaml(path).value)
    except ValidationError as error:
        raise config_error(path, validation_messages(error, {})) from None
