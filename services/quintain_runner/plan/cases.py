"""Cases of a dataset: a line of JSON, a row of CSV or an item of YAML each, with the graders of their own. No I/O."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

from quintain.config.file_errors import suggestion, validation_messages
from quintain.config.yaml_file import parse_yaml
from quintain.contracts.invoke import ChatMessage, InvokeSettings, OutputMessage, ToolCall
from quintain.errors import ConfigError
from quintain.graders import Case, SimulatedUser
from quintain.runtime.text_files import InvalidLine, csv_rows, decode_text
from quintain_runner.files import InvalidJson, json_lines, read_exact_json
from quintain_runner.spec.asking_graders import JudgeGrader, PairwiseGrader, SimilarGrader
from quintain_runner.spec.builtin_graders import ChoiceGrader, ComparingGrader
from quintain_runner.spec.grader_options import IS_DATA
from quintain_runner.spec.graders import (
    GRADER_MODELS,
    CommandGrader,
    FunctionGrader,
    GraderSpec,
    column_names_of,
    grader_kind,
    judges_of,
    max_calls_of,
    named_graders,
    single_graders,
)

T = TypeVar("T")

_TOOL_CALL_FIELDS = ("tool_calls", "toolCalls", "tool_call_id", "toolCallId")


#: Characters per token: the usual average for English text.
CHARACTERS_PER_TOKEN = 4


def read_message(row: object) -> object:
    """Convert a message of a dataset row to Quintain's form, with tool calls in OpenAI's or Quintain's format.

    Tool calls in other formats are dropped: AgentV's have no call id that a later message could refer to, so no
    provider accepts them.
    """
    if not isinstance(row, Mapping):
        return row
    message = {key: value for key, value in row.items() if key not in _TOOL_CALL_FIELDS}
    tool_fields = {key: row[key] for key in _TOOL_CALL_FIELDS if row.get(key) is not None}
    calls = _parse_tool_calls(tool_fields.get("tool_calls", tool_fields.get("toolCalls")))
    if calls:
        message["toolCalls"] = calls
        # OpenAI's messages with tool calls only have null as their content.
        message["content"] = "" if message.get("content") is None else message["content"]
    call_id = tool_fields.get("tool_call_id", tool_fields.get("toolCallId"))
    return {**message, "toolCallId": call_id} if isinstance(call_id, str) else message


def _parse_tool_calls(raw: object) -> list[dict[str, str]] | None:
    """The tool calls of a message, or None if any of them cannot be converted."""
    if not isinstance(raw, list):
        return None
    calls = [_parse_tool_call(item) for item in raw]
    return [call for call in calls if call is not None] if None not in calls else None


def _parse_tool_call(raw: object) -> dict[str, str] | None:
    """The id, name and arguments of a tool call, or None if it has no text for each of them."""
    if not isinstance(raw, Mapping):
        return None
    function = raw.get("function", raw)
    if not isinstance(function, Mapping):
        return None
    call = {"id": raw.get("id"), "name": function.get("name"), "arguments": function.get("arguments")}
    text_fields = {key: value for key, value in call.items() if isinstance(value, str)}
    return text_fields if text_fields.keys() == call.keys() else None


def write_message(message: ChatMessage | OutputMessage) -> dict[str, JsonValue]:
    """A message in the form that graders read: tool calls in AgentV's format, and no null values."""
    written: dict[str, JsonValue] = {"role": message.role, "content": message.content}  # type: ignore[dict-item]
    if message.tool_calls:
        written["tool_calls"] = [
            {"tool": call.name, "input": _tool_input(call), "id": call.id} for call in message.tool_calls
        ]
    if isinstance(message, ChatMessage) and message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    return written


def _tool_input(call: ToolCall) -> JsonValue:
    """The arguments of a tool call, parsed as JSON; the text itself if it is not valid JSON."""
    try:
        value: JsonValue = json.loads(call.arguments)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return call.arguments
    return value


def input_length(case: Case) -> int:
    """The number of characters of a case's input: of a conversation in all its turns, each of which has those before,
    without the answers. A simulated user is taken to say as much as its goal in each."""
    text = case.question or "".join(str(message.content) for message in case.messages or [])
    first = len(text) + len(case.system_prompt or "")
    if case.user is not None:
        turns = case.user.max_turns
        return first * turns + len(case.user.goal) * turns * (turns + 1) // 2
    total = said = first if text or case.turns is None else 0
    for turn in case.turns or ():
        said = (said or first) + len(turn)
        total += said
    return total


def token_count(characters: int) -> int:
    """The approximate number of tokens in a text of this many characters."""
    return math.ceil(characters / CHARACTERS_PER_TOKEN)


def expected_text(case: Case) -> str | None:
    """The expected answer of a case as text (a string unchanged, other values as JSON), or None if it has none."""
    if case.expected is None or isinstance(case.expected, str):
        return case.expected
    return json.dumps(case.expected, ensure_ascii=False)


#: An example of a valid line, for error messages.
EXAMPLE_LINE = '{"id": "1", "question": "What is the capital of France?", "expected": "Paris"}'

_OWN_FIELDS = frozenset(
    {"id", "question", "messages", "system_prompt", "expected", "settings", "turns", "graders", "choices"}
)

_USER_FIELDS = frozenset(SimulatedUser.model_fields)

_SETTINGS = frozenset(InvokeSettings.model_fields) | {field.alias for field in InvokeSettings.model_fields.values()}

_QUESTION_OR_MESSAGES = "give one of question (text) and messages (a list of {role, content})"

_ASKS_NOTHING = f"{_QUESTION_OR_MESSAGES}, or turns (a list of texts), or user (an object with target and goal)"

#: A line number, from 1, and the case of that line, or the error that makes it invalid.
ParsedRow = tuple[int, Case | InvalidLine]


#: The dataset's own name of each field that has another one there, by ours.
FieldNames = Mapping[str, str]


def parse_jsonl(lines: Iterable[bytes], names: FieldNames | None = None) -> Iterator[ParsedRow]:
    """Parse JSON lines, one case per line; blank lines are skipped, and errors are returned in place of cases."""
    for number, value in json_lines(lines, EXAMPLE_LINE):
        yield number, _case_or_error(partial(parse_case, names=names), value)


def parse_csv(lines: Iterable[bytes], names: FieldNames | None = None) -> Iterator[ParsedRow]:
    """Parse CSV with a header row, one case per row. An empty cell is an absent field; errors are returned in place of
    cases.
    """
    for number, row in csv_rows(lines, required=("id",) if names is None else names.values()):
        yield number, _case_or_error(partial(_case_from_cells, names=names), row)


def parse_yaml_list(lines: Iterable[bytes], name: str, names: FieldNames | None = None) -> Iterator[ParsedRow]:
    """Parse a YAML list of cases; errors of cases are returned in their place. Raises `ConfigError`, which begins with
    the file's ``name``, for what is no such list.
    """
    document = parse_yaml(decode_text(lines, name).replace("\r\n", "\n"), name)
    if not isinstance(document.value, list | None):
        raise ConfigError(f"{name}: line {document.line(())}: it is no list of cases; write - {EXAMPLE_LINE}")
    rows = parse_jsonl((json.dumps(value).encode() for value in document.value or []), names)
    yield from ((document.line((number - 1,)), row) for number, row in rows)


def _case_or_error(parse: Callable[[T], Case], value: T | InvalidLine) -> Case | InvalidLine:
    try:
        return value if isinstance(value, InvalidLine) else parse(value)
    except InvalidLine as invalid_line:
        return invalid_line


def parse_case(value: JsonValue, names: FieldNames | None = None) -> Case:
    """Make a case of the JSON of one line. Raises `InvalidLine`."""
    if not isinstance(value, dict):
        raise InvalidLine(f"it is not an object; write {EXAMPLE_LINE}")
    for theirs in (names or {}).values():
        if theirs not in value:
            raise InvalidLine(f"it has no {theirs!r}, which dataset.fields names; it has {', '.join(sorted(value))}")
    return case_from_fields({**value} if names is None else _with_our_names(value, names))


def _with_our_names(row: Mapping[str, object], names: FieldNames) -> dict[str, object]:
    """The fields of a row by our names; without an id it has the hash of the row. Raises `InvalidLine`."""
    taken = set(names.values())
    for ours, theirs in names.items():
        if ours in row and ours not in taken:
            raise InvalidLine(f"{ours}: dataset.fields takes it from {theirs!r}, and the row has both; rename one")
    renamed = {key: value for key, value in row.items() if key not in taken}
    renamed |= {ours: row[theirs] for ours, theirs in names.items() if theirs in row}
    if "id" not in renamed:
        text = json.dumps(row, sort_keys=True, default=str)
        renamed["id"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return renamed


def _case_from_cells(row: dict[str, str], names: FieldNames | None = None) -> Case:
    """Build a case from the cells of a row: the column ``NAME:json`` has the JSON of a field, and ``grader:KIND`` what
    a grader of the case compares with. Raises `InvalidLine`."""
    fields: dict[str, object] = {}
    graders: list[dict[str, object]] = []
    for column, cell in row.items():
        name, _, form = column.partition(":")
        if cell and name == "grader" and form:
            graders.append(_grader_of_cell(form, cell))
        elif cell and (form == "json" or column == "graders"):
            if form and row.get(name):
                raise InvalidLine(f"{column}: {name} has a column of its own, too; leave one of them empty")
            fields[name] = _json_of_cell(column, cell)
        elif cell:
            fields[column] = cell
    own = fields.get("graders", [])
    if graders and isinstance(own, list):
        fields["graders"] = [*own, *graders]
    return case_from_fields(fields if names is None else _with_our_names(fields, names))


def _json_of_cell(column: str, cell: str) -> JsonValue:
    try:
        return read_exact_json(cell)
    except InvalidJson as error:
        raise InvalidLine(f"{column}: it is not JSON ({error})") from None


#: What a cell of the column ``grader:KIND`` is for kinds that have no ``value``.
_CELL_KEYS = {"regex": "pattern", "llm-judge": "instructions"}


def _grader_of_cell(form: str, cell: str) -> dict[str, object]:
    """The grader of the column ``grader:KIND``, ``grader:not-KIND``, or either with ``:NAME``."""
    kind, _, name = form.partition(":")
    builtin = kind.removeprefix("not-")
    named: dict[str, object] = {"name": name} if name else {}
    return {**named, "builtin": builtin, "not": builtin != kind, _CELL_KEYS.get(builtin, "value"): cell}


def case_from_fields(row: dict[str, object]) -> Case:
    """Build a case from the fields of a row; unknown fields become its metadata. Raises `InvalidLine`."""
    case_id = row.get("id")
    if isinstance(case_id, int | float) and not isinstance(case_id, bool):
        row["id"] = str(case_id)
    elif not isinstance(case_id, str) or not case_id:
        raise InvalidLine(f"it has no id (text or a number); write {EXAMPLE_LINE}")
    if row.get("question") is not None and row.get("messages") is not None:
        raise InvalidLine(_QUESTION_OR_MESSAGES)
    own_fields = _OWN_FIELDS | ({"user"} if _is_simulated(row.get("user")) else frozenset())
    own = {key: value for key, value in row.items() if key in own_fields}
    messages = own.get("messages")
    if isinstance(messages, list):
        own["messages"] = [read_message(message) for message in messages]
    settings = own.get("settings")
    unknown = sorted(str(key) for key in settings if key not in _SETTINGS) if isinstance(settings, dict) else []
    if unknown:
        raise InvalidLine(f"settings: unknown key {unknown[0]!r}{suggestion(unknown[0], InvokeSettings.model_fields)}")
    others = {key: value for key, value in row.items() if key not in own_fields}
    try:
        return Case.model_validate({**own, "metadata": others})
    except ValidationError as error:
        raise InvalidLine("; ".join(validation_messages(error, {}))) from None


def _is_simulated(user: object) -> bool:
    """Whether a field of this name is a simulated user; any other is data."""
    return isinstance(user, Mapping) and not _USER_FIELDS.isdisjoint(user)


def require_question(row: Case | InvalidLine) -> Case | InvalidLine:
    """The row, or its error if it asks nothing: for prompts that ask the case itself."""
    if isinstance(row, Case) and row.question is None and row.messages is None and not row.is_conversation:
        return InvalidLine(_ASKS_NOTHING)
    return row


_GRADERS: TypeAdapter[list[GraderSpec]] = TypeAdapter(list[GraderSpec], config=ConfigDict(defer_build=True))

_MODELS = {("*", *place): model for place, model in GRADER_MODELS.items()}


def with_own_graders(row: Case | InvalidLine, taken: Collection[str]) -> Case | InvalidLine:
    """The case with its own graders validated and named, or what is wrong with them; ``taken`` are the names that the
    evaluation's graders have."""
    if isinstance(row, InvalidLine) or not row.graders:
        return row
    try:
        graders = _GRADERS.validate_python(named_graders(row.graders, taken), context={IS_DATA: True})
    except ValidationError as error:
        return InvalidLine("; ".join(validation_messages(error, _MODELS, within=["graders"])))
    names = [name for grader in graders for name in column_names_of(grader)]
    if twice := sorted({name for name in names if name in taken or names.count(name) > 1}):
        return InvalidLine(f"graders: the name {twice[0]!r} is used twice, here or in the evaluation file; rename one")
    for index, grader in enumerate(graders):
        for one in single_graders([grader]):
            if (problem := _problem_of(one) or _expected_problem(one, row)) is not None:
                return InvalidLine(f"graders[{index}] ({grader.name}): {problem}")
    return row.model_copy(update={"graders": graders})


def _problem_of(grader: GraderSpec) -> str | None:
    """Why a case may not have a grader; None if it may. What a dataset says is run by no program, and is no path."""
    if isinstance(grader, CommandGrader | FunctionGrader | PairwiseGrader):
        return f"write a {grader_kind(grader)} grader in the evaluation file; a case has built-in ones of its answers"
    if grader.reduce is not None:
        return "reduce: it is of a grader that all cases have; write it in the evaluation file"
    paths = {"prompt": getattr(grader, "prompt", None), "schema": getattr(grader, "json_schema", None)}
    named = [key for key, path in paths.items() if isinstance(path, str)] + ["depends_on"] * bool(grader.depends_on)
    return f"{named[0]}: a case names no files; write what it holds" if named else None


def _expected_problem(grader: GraderSpec, case: Case) -> str | None:
    """Why the case's expected is nothing that its grader can compare with; None if it is, or has not to be."""
    if isinstance(grader, ChoiceGrader) and (case.choices is None or case.expected is None):
        return "give the case choices, a list of texts, and an expected, the letter or the text of one"
    if not isinstance(grader, ComparingGrader) or grader.has_value:
        return None
    if case.expected is None:
        return "give it a value, or the case an expected"
    return None if (problem := grader.problem_of(case.expected)) is None else f"expected: {problem}"


@dataclass(frozen=True, slots=True)
class OwnAsking:
    """So many ``graders`` of cases that ask the same targets, ``at_once`` of one case at most, and the ``longest`` of
    them."""

    longest: JudgeGrader | SimilarGrader
    graders: int = 0
    at_once: int = 0


@dataclass(slots=True)
class OwnGraderStats:
    """What the own graders of the cases that were ``counted`` take: of each name the most calls for one answer, the
    kind, the targets that it names (an empty text where it names none) and the number of cases; and the most calls of
    all of one case, and of all cases, for one answer each.
    ``asking`` are those that ask, by their kind and the targets that they name.
    """

    limits: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    cases: Counter[str] = field(default_factory=Counter)
    targets: dict[str, dict[str, None]] = field(default_factory=dict)
    asking: dict[tuple[str, ...], OwnAsking] = field(default_factory=dict)
    counted: int = 0
    most_calls_of_case: int = 0
    calls: int = 0

    def add(self, case: Case) -> None:
        """Count the graders of a case."""
        total, asking = 0, Counter[tuple[str, ...]]()
        for grader in case.graders:
            calls = max_calls_of(grader)
            total += calls
            self.limits[grader.name] = max(calls, self.limits.get(grader.name, 0))
            self.kinds.setdefault(grader.name, grader_kind(grader))
            self.cases[grader.name] += 1
            self.targets.setdefault(grader.name, {}).update(dict.fromkeys(judges_of(grader, "", {})))
            for one in single_graders([grader]):
                if isinstance(one, JudgeGrader | SimilarGrader):
                    key = (one.builtin, *judges_of(one, "", {}))
                    asking[key] += 1
                    known = self.asking.get(key, OwnAsking(one))
                    longest = max(known.longest, one, key=_length)
                    self.asking[key] = OwnAsking(longest, known.graders + 1, max(known.at_once, asking[key]))
        self.counted += 1
        self.calls += total
        self.most_calls_of_case = max(self.most_calls_of_case, total)

    def judges_of(self, target: str, judge_targets: Mapping[str, str | None], name: str | None = None) -> list[str]:
        """The targets that they call for answers of ``target``, or those of this ``name``; ``judge_targets`` are the
        configured ones."""
        named = self.targets.values() if name is None else [self.targets[name]]
        judges = dict.fromkeys(judge for each in named for judge in each)
        return [judge or judge_targets.get(target) or target for judge in judges]


def _length(grader: JudgeGrader | SimilarGrader) -> int:
    return len(grader.model_dump_json(include={"instructions", "rubric", "value"}))
