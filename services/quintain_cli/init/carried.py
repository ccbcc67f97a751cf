"""An evaluation of another tool, carried over: its files, what is read of them, and what could not be carried."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from quintain.config.yaml_file import Place, read_yaml
from quintain.errors import ConfigError
from quintain.runtime.text_files import InvalidLine, csv_rows, read_text
from quintain_runner.files import InvalidJson, json_lines, read_exact_json

JsonDict = dict[str, Any]

FILE_PREFIX = "file://"

#: The beginnings of what is no file of this machine, and of programs, whatever white space follows.
_REGISTRY = re.compile(r"(?:portkey|langfuse|helicone|huggingface|az)://|(?:package|exec):")
_ADDRESS = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+://")
_PROGRAM = re.compile(r"\.(?:[cm]?[jt]s|py|rb|go|sh|bash|exe|bat|cmd|ps1|pl)(?::[\w.$-]+)?$", re.IGNORECASE)

#: What one word looks like that is a path: a slash, a wildcard, or an ending.
_PATH = re.compile(r"[/\\*]|\.[A-Za-z]\w{0,5}(?::\w+)?$")

#: Files that are shown to a model as data, and not as their text.
_MEDIA = re.compile(
    r"\.(?:jpe?g|png|gif|bmp|webp|svg|tiff?|heic|avif|mp[34]|wav|ogg|flac|m4a|webm|mov|pdf|docx?|xlsx?)$", re.IGNORECASE
)

_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class At:
    """Where a value stands: its file, and the keys and positions that lead to it there. ``line_of`` knows the lines."""

    file: Path
    line_of: Callable[[Place], int]
    place: Place = ()

    def under(self, *keys: str | int) -> At:
        """Where a value inside this one stands."""
        return replace(self, place=(*self.place, *keys))

    def items(self, listed: object) -> list[Found]:
        """The items of a list that stands here, or the one value, each with its place."""
        if isinstance(listed, list):
            return [(one, self.under(number)) for number, one in enumerate(listed)]
        return [] if listed is None else [(listed, self)]

    def __str__(self) -> str:
        return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.place).removeprefix(".")


#: A value that was read, and where it stands.
Found = tuple[Any, At]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of the other tool's file that was not carried: its line (from 1, 0 if unknown), its place, and why.

    ``file`` is the name of a second file that it is in; empty for the evaluation's own.
    """

    line: int
    place: str
    reason: str
    file: str = ""


@dataclass(slots=True, kw_only=True)
class CarriedCase:
    """A test that became a case: ``fields`` are those that a case has by itself, such as its question, and ``lost`` the
    kinds of its assertions that are not carried.
    """

    at: At
    id: object
    variables: JsonDict = field(default_factory=dict)
    metadata: JsonDict = field(default_factory=dict)
    fields: JsonDict = field(default_factory=dict)
    graders: list[JsonDict] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class CarriedEvaluation:
    """What was read of another tool's evaluation, in the shape of our files.

    ``source`` is its file, and ``output`` the folder that our files are written to. ``evaluated`` are the targets that
    are asked, the others judge; ``known_targets`` are those of AgentV by name. ``outside`` are the files that it names
    and that are not in its folder.
    """

    source: Path
    output: Path
    is_agentv: bool = False
    targets: dict[str, JsonDict] = field(default_factory=dict)
    evaluated: list[str] = field(default_factory=list)
    prompts: list[JsonDict] = field(default_factory=list)
    cases: list[CarriedCase] = field(default_factory=list)
    repeats: int | None = None
    known_targets: dict[str, Found] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The folder that the paths of the evaluation are relative to."""
        return self.source.parent

    def key(self, name: str) -> str:
        """A key of promptfoo as this tool spells it."""
        return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name) if self.is_agentv else name

    def plain(self, value: Any) -> Any:
        """A value whose templates name the variables of a test by themselves, which AgentV also has below ``vars``."""
        match value:
            case str() if self.is_agentv:
                return re.sub(r"(\{[{%][^}]*?)\bvars\.(?=\w)", r"\1", value)
            case list():
                return [self.plain(one) for one in value]
            case dict():
                return {key: self.plain(one) for key, one in value.items()}
        return value

    def leave_out(self, at: At, reason: object) -> None:
        """Note, once, that the part at this place is not carried."""
        file = "" if at.file == self.source else os.path.relpath(at.file, self.folder)
        note = LeftOut(at.line_of(at.place), str(at), str(reason), file)
        if note not in self.left_out:
            self.left_out.append(note)

    def reasons(self, place: str = "") -> str:
        """Why nothing at a place, or anywhere, is carried."""
        notes = [note for note in self.left_out if note.file or note.place.startswith(place)]
        told = (f"{note.file or self.source.name}, line {note.line}: {note.reason}" for note in notes)
        return "; ".join(dict.fromkeys(told)) or "it has none"

    def leave_out_unknown(self, value: Mapping[str, object], at: At, known: Iterable[str]) -> None:
        """Note every key of a mapping that is not known."""
        for key in value:
            if key not in known:
                self.leave_out(at.under(key), "no counterpart")

    def relative(self, path: str | Path) -> str:
        """A path of the evaluation, as our files name it."""
        return os.path.relpath((self.folder / path).resolve(), self.output.resolve())

    def files(self, text: str, at: At) -> list[Path] | None:
        """The files that a text names; None of one that names none. Empty, with a note, if they are not read.

        A text with white space or braces is a name only if there is such a file, or if ``file://`` is before it.
        """
        found = _existing(self.folder, text.removeprefix(FILE_PREFIX))
        is_word = not re.search(r"\s|\{[{%#]", text)
        if _REGISTRY.match(text) or (is_word and _ADDRESS.match(text)):
            self.leave_out(at, f"{text}: what a program or a registry has to give")
        elif not found and not text.startswith(FILE_PREFIX) and not (is_word and _PATH.search(text)):
            return None
        elif not found:
            reason = "a program, which is not run" if _PROGRAM.search(text) else "there is no such file"
            self.leave_out(at, f"{text}: {reason}")
        return [path for path in found if self._is_read(path, at)]

    def _is_read(self, path: Path, at: At) -> bool:
        name = os.path.relpath(path, self.folder)
        is_program = _PROGRAM.search(path.name) or (not path.suffix and os.access(path, os.X_OK))
        if is_program or _MEDIA.search(path.name):
            self.leave_out(at, f"{name}: {'a program, which is not run' if is_program else 'a file that is no text'}")
            return False
        if not path.resolve().is_relative_to(self.folder.resolve()) and name not in self.outside:
            self.outside.append(name)
        return True

    def items(self, text: str, at: At) -> list[Found]:
        """What stands in the files of YAML, JSON, JSON lines or CSV that a text names; none, with a note, of others."""
        found = []
        for path in self.files(text if "://" in text else FILE_PREFIX + text, at) or []:
            if path.suffix in (".yaml", ".yml", ".json", ".jsonl", ".csv"):
                found += read_items(path)
            else:
                self.leave_out(at, f"{path.name}: a file of another format")
        return found

    def content(self, text: str, at: At) -> Any:
        """What stands in the one file of YAML, JSON or text that a text names; None, with a note, of others."""
        paths = self.files(text if "://" in text else FILE_PREFIX + text, at) or []
        if len(paths) != 1:
            return None
        is_data = paths[0].suffix in (".yaml", ".yml", ".json")
        return read_document(paths[0])[0] if is_data else read_text(paths[0]).strip()

    def add_target(self, name: object, target: JsonDict) -> str:
        """Add a target under a name that queues may have, made unique; returns it. One that is there is not added."""
        base = _NAME_CHARACTERS.sub("-", str(name)).strip("-.") or "target"
        chosen = unique(base, {name for name, other in self.targets.items() if other != target})
        self.targets[chosen] = target
        return chosen

    def add_prompt(self, prompt: JsonDict, label: object) -> None:
        """Add a prompt, named by its label."""
        base = _NAME_CHARACTERS.sub("-", label).strip("-.")[:60] if isinstance(label, str) else ""
        taken = {str(one.get("name")) for one in self.prompts}
        self.prompts.append({**({"name": unique(base, taken)} if base else {}), **prompt})


def unique(name: str, taken: set[str]) -> str:
    """Return the name, with a number if it is taken; it is taken then."""
    chosen = next(one for one in chain([name], (f"{name}-{n}" for n in count(2))) if one not in taken)
    taken.add(chosen)
    return chosen


def mapping(value: object) -> JsonDict:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def _existing(folder: Path, name: str) -> list[Path]:
    """The files that a name means: that file, those of that folder, or those that it matches, in order."""
    if re.search(r"[\n\0]|\{\{", name) or not name.strip():
        return []
    # pathlib's own refuse an absolute pattern, and a text that is too long for a name.
    path = folder / name
    if os.path.isdir(path):  # noqa: PTH112
        return sorted(one for one in path.iterdir() if one.is_file())
    names = [name] if os.path.isfile(path) else glob.glob(name, root_dir=folder, recursive=True)  # noqa: PTH113, PTH207
    return sorted(one for each in names if (one := folder / each).is_file())


def read_document(path: Path) -> Found:
    """Read a file of YAML or JSON. Raises `ConfigError` with the line of what is wrong."""
    try:
        document = read_yaml(path)
    except ConfigError:
        # PyYAML refuses what JSON allows, such as tabs.
        if path.suffix != ".json":
            raise
        try:
            return read_exact_json(read_text(path)), At(path, lambda _: 1)
        except InvalidJson as error:
            raise ConfigError(f"{path}: it is not JSON ({error})") from None
    return document.value, At(path, document.line)


def read_items(path: Path) -> list[Found]:
    """Read the items of a file: the rows of CSV, the values of JSON lines, or those of a list of JSON or YAML.

    Raises `ConfigError` with the line of what cannot be read.
    """
    if path.suffix not in (".csv", ".jsonl"):
        value, at = read_document(path)
        return at.items(value)
    rows: list[Found] = []
    with path.open("rb") as file:
        for number, row in csv_rows(file) if path.suffix == ".csv" else json_lines(file, '{"vars": {"name": "Ann"}}'):
            if isinstance(row, InvalidLine):
                raise ConfigError(f"{path}: line {number}: {row}")
            rows.append((row, At(path, lambda _, number=number: number)))  # type: ignore[misc]
    return rows
