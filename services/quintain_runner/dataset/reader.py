"""Reads a dataset of JSON lines or CSV as a stream of cases, and checks every row before any call is made."""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import JsonValue, ValidationError

from quintain.contracts.invoke import ChatMessage, InvokeSettings, OutputMessage, ToolCall
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.dataset.requirements import FEATURE_NAMES, CaseRequirement, UnmetRequirements
from quintain_runner.dataset.sampling import ALL_CASES, CaseSelection, HashSampler
from quintain_runner.results.row_index import KeyHashSet, key_hash
from quintain_runner.spec.evaluation import DatasetSpec
from quintain_runner.spec.files import (
    MAX_REPORTED_ERRORS,
    InvalidJson,
    config_error,
    read_json,
    suggestion,
    validation_messages,
)
from quintain_runner.spec.prompts import CASE_AS_IT_IS, Prompt

_TOOL_CALL_FIELDS = ("tool_calls", "toolCalls", "tool_call_id", "toolCallId")


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


def expected_text(case: Case) -> str | None:
    """The expected answer of a case as text (a string unchanged, other values as JSON), or None if it has none."""
    if case.expected is None or isinstance(case.expected, str):
        return case.expected
    return json.dumps(case.expected, ensure_ascii=False)


#: An example of a valid line, for error messages.
EXAMPLE_LINE = '{"id": "1", "question": "What is the capital of France?", "expected": "Paris"}'

_OWN_FIELDS = frozenset({"id", "question", "messages", "system_prompt", "expected", "settings"})

_SETTINGS = frozenset(InvokeSettings.model_fields) | {field.alias for field in InvokeSettings.model_fields.values()}

_QUESTION_OR_MESSAGES = "give one of question (text) and messages (a list of {role, content})"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

#: A line number, from 1, and the case of that line, or the error that makes it invalid.
ParsedRow = tuple[int, "Case | InvalidLine"]


class InvalidLine(ValueError):
    """A row is not a valid case; the message says what is wrong and how to fix it."""


def parse_jsonl(lines: Iterable[bytes]) -> Iterator[ParsedRow]:
    """Parse JSON lines, one case per line; empty lines are skipped, and errors are returned in place of cases."""
    for number, line in enumerate(lines, start=1):
        content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        if content.strip():
            try:
                yield number, parse_case(content)
            except InvalidLine as invalid_line:
                yield number, invalid_line


def parse_csv(lines: Iterable[bytes]) -> Iterator[ParsedRow]:
    """Parse CSV with a header row, one case per row. An empty cell is an absent field; errors are returned in place of
    cases.
    """
    reader = csv.reader(_decode_lines(lines), strict=True)
    header: list[str] | None = None
    while True:
        try:
            cells = next(reader, None)
            if cells is None:
                return
            if not cells:
                continue
            if header is None:
                header = _parse_header(cells)
                continue
            yield reader.line_num, _case_from_cells(header, cells)
        except InvalidLine as invalid_line:
            yield max(reader.line_num, 1), invalid_line
            if header is None:
                return
        except csv.Error as error:
            yield reader.line_num, InvalidLine(f"it is not CSV ({error}); quote such a cell, or use JSON lines")
            return


def parse_case(line: bytes) -> Case:
    """Parse one line of JSON as a case. Raises `InvalidLine`."""
    try:
        row = read_json(line.decode())
    except UnicodeDecodeError:
        raise InvalidLine("it is not UTF-8; save the file in that encoding") from None
    except InvalidJson as json_error:
        raise InvalidLine(f"it is not JSON ({json_error}); each line is one object: {EXAMPLE_LINE}") from None
    if not isinstance(row, dict):
        raise InvalidLine(f"it is JSON, but not an object; write {EXAMPLE_LINE}")
    return case_from_fields({**row})


def case_from_fields(row: dict[str, object]) -> Case:
    """Build a case from the fields of a row; unknown fields become its metadata. Raises `InvalidLine`."""
    case_id = row.get("id")
    if isinstance(case_id, int | float) and not isinstance(case_id, bool):
        row["id"] = str(case_id)
    elif not isinstance(case_id, str) or not case_id:
        raise InvalidLine(f"it has no id (text or a number); write {EXAMPLE_LINE}")
    if row.get("question") is not None and row.get("messages") is not None:
        raise InvalidLine(_QUESTION_OR_MESSAGES)
    own = {key: value for key, value in row.items() if key in _OWN_FIELDS}
    messages = own.get("messages")
    if isinstance(messages, list):
        own["messages"] = [read_message(message) for message in messages]
    settings = own.get("settings")
    unknown = sorted(str(key) for key in settings if key not in _SETTINGS) if isinstance(settings, dict) else []
    if unknown:
        raise InvalidLine(f"settings: unknown key {unknown[0]!r}{suggestion(unknown[0], InvokeSettings.model_fields)}")
    others = {key: value for key, value in row.items() if key not in _OWN_FIELDS}
    try:
        return Case.model_validate({**own, "metadata": others})
    except ValidationError as error:
        raise InvalidLine("; ".join(validation_messages(error, {}))) from None


def _decode_lines(lines: Iterable[bytes]) -> Iterator[str]:
    """Decode the lines as UTF-8, without a byte order mark. Raises `InvalidLine`."""
    for number, line in enumerate(lines, start=1):
        content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        try:
            yield content.decode()
        except UnicodeDecodeError:
            raise InvalidLine("it is not UTF-8; save the file in that encoding") from None


def _parse_header(cells: list[str]) -> list[str]:
    """The column names of the header row. Raises `InvalidLine` if ``id`` is missing or a name is repeated."""
    names = [cell.strip() for cell in cells]
    if "id" not in names:
        fix = "separate the cells by commas" if ";" in names[0] else "name the columns: id,question,expected"
        raise InvalidLine(f"the header row names no id; {fix}")
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise InvalidLine(f"the header row names {', '.join(map(repr, duplicates))} twice; rename one")
    return names


def _case_from_cells(header: list[str], cells: list[str]) -> Case:
    """Build a case from the cells of a row. Raises `InvalidLine`."""
    if len(cells) != len(header):
        raise InvalidLine(
            f"it has {len(cells)} cells, and the header row names {len(header)}; quote a cell with commas"
        )
    return case_from_fields({name: cell for name, cell in zip(header, cells, strict=True) if cell and name})


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSource:
    """A file of cases, its format, and the selection of its rows.

    ``prompts`` are what is asked about each case; where they ask the case itself, it needs a question or messages.
    """

    path: Path
    is_csv: bool = False
    prompts: tuple[Prompt, ...] = (CASE_AS_IT_IS,)
    selection: CaseSelection = ALL_CASES


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStats:
    """The result of checking a dataset.

    ``cases`` is the number of selected cases, and ``sha256`` identifies the dataset with its selection.
    ``input_characters`` and ``expected_characters`` are the total lengths of inputs and expected answers of the
    selected cases, under each prompt; extrapolated if only some of the matching rows are selected. ``warnings`` are
    about fields that some of them lack; ``feature_fields`` counts the rows with a field of `FEATURE_NAMES`.
    """

    source: CaseSource
    cases: int
    sha256: str
    input_characters: int = 0
    expected_characters: int = 0
    warnings: tuple[str, ...] = ()
    feature_fields: Mapping[str, int] = field(default_factory=dict)


def read_cases(source: CaseSource) -> Generator[Case, None, None]:
    """Iterate over the selected cases. Raises `ConfigError` at the first invalid row.

    Example::

        stats = check_dataset(evaluation.spec.dataset, Path("cases.jsonl"))
        for case in read_cases(stats.source):
            print(case.id)
    """
    with closing(_parsed_rows(source)) as rows:
        yield from source.selection.filter_cases(_valid_cases(source, rows))


def check_dataset(
    spec: DatasetSpec,
    path: Path,
    requirements: Sequence[CaseRequirement] = (),
    prompts: tuple[Prompt, ...] = (CASE_AS_IT_IS,),
) -> DatasetStats:
    """Read every row once, up to the last one that can be selected, and draw the sample.

    ``path`` is the dataset file, or the stored output of the dataset command, and ``prompts`` are what is asked about
    each case. Raises `ConfigError` with one line for
    each invalid row, with its line number, or one line for each requirement that selected cases do not meet.
    """
    source = CaseSource(path=path, is_csv=spec.is_csv, prompts=prompts)
    sampler, ids, digest = HashSampler(spec), KeyHashSet(), hashlib.sha256()
    unmet, errors = UnmetRequirements(requirements), list[str]()
    rows, error_count, input_characters, expected_characters = 0, 0, 0, 0
    feature_fields = Counter[str]()
    for number, row in _parsed_rows(source, digest.update):
        rows += 1
        error = _row_error(row, ids)
        if error is not None:
            error_count += 1
            if error_count <= MAX_REPORTED_ERRORS:
                errors.append(f"line {number}: {error}")
        elif isinstance(row, Case) and sampler.offer(row):
            unmet.add(row)
            feature_fields.update(row.metadata.keys() & FEATURE_NAMES.keys())
            input_characters += sum(_length(prompt.apply(row)) for prompt in prompts)
            expected_characters += len(prompts) * len(expected_text(row) or "")
            if sampler.is_complete:
                break
    if error_count:
        raise config_error(path, errors, more=error_count - len(errors))
    _require_cases(path, spec, rows, sampler)
    source = replace(source, selection=sampler.final_selection())
    warnings = _require_met(unmet, source, sampler)
    share = sampler.case_count / sampler.matching_count
    return DatasetStats(
        source=source,
        cases=sampler.case_count,
        sha256=_dataset_hash(digest.hexdigest(), spec),
        input_characters=round(input_characters * share),
        expected_characters=round(expected_characters * share),
        warnings=warnings,
        feature_fields=feature_fields,
    )


def _require_cases(path: Path, spec: DatasetSpec, rows: int, sampler: HashSampler) -> None:
    """Raise `ConfigError` if the dataset is empty or ``where`` selects no row."""
    if not rows:
        raise config_error(path, [f"the dataset has no cases; write one to a line, such as {EXAMPLE_LINE}"])
    if not sampler.matching_count:
        fields = ", ".join(spec.where)
        raise config_error(path, [f"where selects none of its {rows:,} rows; check {fields}"])


def _require_met(unmet: UnmetRequirements, source: CaseSource, sampler: HashSampler) -> tuple[str, ...]:
    if unmet and sampler.case_count < sampler.matching_count:
        # All rows that the sample was drawn from were counted; only the drawn ones matter.
        unmet = unmet.recounted(read_cases(source))
    if errors := list(unmet.messages(sampler.case_count)):
        raise config_error(source.path, errors)
    return tuple(f"{source.path}: {text}" for text in unmet.messages(sampler.case_count, warnings=True))


def _row_error(row: Case | InvalidLine, seen_ids: KeyHashSet) -> str | None:
    """The error of a row, or None if it is a case with a new id."""
    if isinstance(row, InvalidLine):
        return str(row)
    id_hash = key_hash(row.id)
    if id_hash in seen_ids:
        return f"the id {row.id!r} is used before; ids tell cases apart: rename one"
    seen_ids.add(id_hash)
    return None


def _dataset_hash(sha256: str, spec: DatasetSpec) -> str:
    """The hash of the dataset: of the file's content, and of its selection if it has one."""
    if spec.selects_all_rows:
        return sha256
    selection = spec.model_dump(include={"where", "sample", "seed", "limit"})
    return hashlib.sha256(json.dumps([sha256, selection], sort_keys=True).encode()).hexdigest()


def _length(case: Case) -> int:
    """The number of characters of a case's input."""
    text = case.question or "".join(str(message.content) for message in case.messages or [])
    return len(text) + len(case.system_prompt or "")


def _valid_cases(source: CaseSource, rows: Iterator[ParsedRow]) -> Iterator[Case]:
    """Iterate over the cases. Raises `ConfigError` at the first invalid row."""
    for number, row in rows:
        if isinstance(row, InvalidLine):
            raise config_error(source.path, [f"line {number}: {row}"])
        yield row


def _parsed_rows(source: CaseSource, on_line: Callable[[bytes], object] = len) -> Generator[ParsedRow, None, None]:
    """Parse every row of the source's file; ``on_line`` is called with each of its lines. Raises `ConfigError`."""
    try:
        with source.path.open("rb") as file:
            lines = _observed_lines(file, on_line)
            rows = parse_csv(lines) if source.is_csv else parse_jsonl(lines)
            if any(prompt.asks_the_case for prompt in source.prompts):
                rows = ((number, _require_question(row)) for number, row in rows)
            yield from rows
    except OSError as error:
        raise ConfigError(
            f"{source.path}: the dataset cannot be read ({error.strerror}); its path is relative to the evaluation file"
        ) from None


def _require_question(row: Case | InvalidLine) -> Case | InvalidLine:
    if isinstance(row, Case) and row.question is None and row.messages is None:
        return InvalidLine(_QUESTION_OR_MESSAGES)
    return row


def _observed_lines(lines: Iterable[bytes], on_line: Callable[[bytes], object]) -> Iterator[bytes]:
    """Iterate over lines, calling ``on_line`` with each."""
    for line in lines:
        on_line(line)
        yield line
