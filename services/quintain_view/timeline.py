"""The rows of a timeline: of a recorded run, or of what an agent did for an answer. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quintain.contracts.agents import AgentStep, StepsCut
from quintain_runner.results.answer import Answer
from quintain_view.text import ShownText, json_text, shown

#: A page shows so many steps of an answer at first; asked for all, it shows as many as a row can hold.
MAX_SHOWN_STEPS, MAX_ROW_STEPS = 200, 1_000_000


@dataclass(frozen=True, slots=True)
class NamedText:
    """A text of a step or a reply. ``left_out`` is how many of its characters were not recorded."""

    name: str
    text: ShownText
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class StepReply:
    """The controller's reply, or a tool's result: its class, its texts, and how long the target waited for it."""

    title: str
    took: str
    texts: list[NamedText]
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One row of a timeline: what the target sent, and the controller's reply to it; or one thing that an agent did.

    ``beside`` counts the events that awaited replies when this one was sent. ``waits_since`` is the time from which an
    event without a reply waits, in milliseconds since the epoch, in a run that goes on. A reply to no event of the
    record has no ``title``. A ``gap`` is where steps were left out, and a ``turn`` begins one of a conversation.
    """

    kind: str
    at: str
    title: str = ""
    type: str = ""
    tag: str = ""
    texts: list[NamedText] | None = None
    beside: int = 0
    reply: StepReply | None = None
    waits_since: int | None = None
    waited: str = ""


@dataclass(frozen=True, slots=True)
class AnswerTimeline:
    """What an agent did for an answer. ``notes`` say what is not here, ``is_cut`` that the page left out steps."""

    title: str
    steps: list[Step]
    notes: list[str]
    is_cut: bool


def answer_timeline(answers: Sequence[Answer], max_steps: int = MAX_SHOWN_STEPS) -> AnswerTimeline | None:
    """The timeline of an answer, or of the answers of a conversation's turns; None if their target told no steps."""
    told = [step for answer in answers for step in answer.steps or ()]
    if not told:
        return None
    rows: list[Step] = []
    notes: list[str] = []
    room = max_steps
    for number, answer in enumerate(answers, start=1):
        if len(answers) > 1 and room > 0:
            rows.append(Step(kind="turn", at="", title=f"Turn {number}"))
        shown_steps, cut = [_step(step) for step in (answer.steps or ())[:room]], answer.steps_cut
        room -= len(shown_steps)
        if cut is not None:
            notes.append(_cut_note(cut))
            if cut.steps and cut.kept <= len(shown_steps):
                gap = Step(kind="gap", at="", title=f"{cut.steps:,} steps were left out here")
                shown_steps.insert(cut.kept, gap)
        rows += shown_steps
    if len(told) > max_steps:
        notes.append(f"These are the first {max_steps:,} of {len(told):,} steps; the raw row has them.")
    tools = sum(step.operation == "execute_tool" for step in told)
    title = f"Steps: {len(told):,}" + (f", {tools:,} of them calls of tools" if tools else "")
    return AnswerTimeline(title, rows, notes, is_cut=len(told) > max_steps)


def _cut_note(cut: StepsCut) -> str:
    counts = {"steps": cut.steps, "characters of texts": cut.characters, "values": cut.values}
    parts = [f"{count:,} {name}" for name, count in counts.items() if count]
    return f"Left out: {', '.join(parts)}. The steps of a row have 256 KiB at most."


def _step(step: AgentStep) -> Step:
    is_tool = step.operation == "execute_tool"
    title = step.tool if is_tool else step.agent or step.model or _speaker(step)
    texts = [] if step.arguments is None else [_named("arguments", step.arguments)]
    reply = None
    if step.result is not None or step.error_type is not None:
        reply = StepReply(
            title=step.error_type or "",
            took="",
            texts=[] if step.result is None else [_named("result", step.result)],
            is_error=step.error_type is not None,
        )
    return Step(
        kind="tool" if is_tool else "log" if step.operation == "log" else "chat",
        at="" if step.start_ms is None else seconds(step.start_ms),
        title=shown(title or step.operation, 200).text,
        type=" · ".join(_facts(step)),
        texts=[*_message_texts(step), *texts],
        reply=reply,
    )


def _speaker(step: AgentStep) -> str | None:
    name = step.messages[0].get("name") if step.messages else None
    return name if isinstance(name, str) else None


def _facts(step: AgentStep) -> Iterator[str]:
    yield step.operation
    if step.duration_ms is not None:
        yield seconds(step.duration_ms)
    if step.input_tokens is not None or step.output_tokens is not None:
        yield f"{step.input_tokens or 0:,} in, {step.output_tokens or 0:,} out"


def _message_texts(step: AgentStep) -> Iterator[NamedText]:
    for message in step.messages or ():
        who = message.get("name") or message.get("role") or ""
        parts = message.get("parts")
        for part in parts if isinstance(parts, list) else [message]:
            known = part if isinstance(part, dict) else {"content": part}
            kind, content = known.get("type", "other"), known.get("content")
            # A call of a tool, its response, and what has no text are shown as the JSON that they are.
            rest = content if isinstance(content, str) else {key: known[key] for key in known if key != "type"}
            yield _named(f"{who} · {kind}" if kind != "text" else f"{who}", rest)


def _named(name: str, value: object) -> NamedText:
    return NamedText(shown(name, 200).text, shown(json_text(value)))  # type: ignore[arg-type]


def seconds(milliseconds: float) -> str:
    """A time as a page shows it."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    minutes, seconds = divmod(milliseconds / 1000, 60)
    return f"{int(minutes):,} min {seconds:04.1f} s" if minutes else f"{seconds:.2f} s"
