"""A text that comes in pieces: whatever is lost, repeated or begun again, what was passed on begins the answer, or the
stream ends with an error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.contracts.chunk import Chunk, ReasoningChunk, ToolCallChunk
from quintain.contracts.invoke import OutputMessage, Reasoning, Result, ToolCall
from quintain.errors import ProviderFailed
from quintain_gateway.dispatch.streaming import ChunkAssembler


def result(text: str) -> Result:
    return Result(output=[OutputMessage(content=text)], raw_text=text, target="t", call_count=1, max_calls=1)


def chunk(attempt: int, seq: int, delta: str) -> Chunk:
    return Chunk(attempt=attempt, seq=seq, delta=delta)


def passed_on(text: ChunkAssembler, *chunks: Chunk) -> list[str]:
    return [text.add_chunk(piece) for piece in chunks]


def test_every_piece_is_passed_on_and_then_what_is_left() -> None:
    text = ChunkAssembler()
    assert not text.has_output
    assert passed_on(text, chunk(1, 0, "one "), chunk(1, 1, "two ")) == ["one ", "two "]
    assert text.has_output
    assert text.finish(result("one two three")) == "three"


def test_without_pieces_the_whole_text_is_left() -> None:
    assert ChunkAssembler().finish(result("one")) == "one"
    assert ChunkAssembler().finish(result("")) == ""


def test_after_a_lost_piece_nothing_is_passed_on_until_the_end() -> None:
    text = ChunkAssembler()
    assert passed_on(text, chunk(1, 0, "one "), chunk(1, 2, "three "), chunk(1, 3, "four")) == ["one ", "", ""]
    assert text.finish(result("one two three four")) == "two three four"


def test_where_the_first_piece_is_lost_the_answer_comes_whole() -> None:
    text = ChunkAssembler()
    assert passed_on(text, chunk(1, 1, "two")) == [""]
    assert not text.has_output
    assert text.finish(result("one two")) == "one two"


def test_a_repeated_piece_is_passed_on_once() -> None:
    text = ChunkAssembler()
    assert passed_on(text, chunk(1, 0, "one "), chunk(1, 0, "one "), chunk(1, 1, "two")) == ["one ", "", "two"]


def test_a_later_attempt_that_says_the_same_goes_on_where_the_first_one_ended() -> None:
    text = ChunkAssembler()
    first, second = [chunk(1, 0, "one "), chunk(1, 1, "two ")], [chunk(2, 0, "one t"), chunk(2, 1, "wo three")]
    assert passed_on(text, *first, *second) == ["one ", "two ", "", "three"]
    assert text.finish(result("one two three")) == ""


def test_a_later_attempt_that_differs_is_waited_for_and_ends_with_an_error() -> None:
    text = ChunkAssembler()
    assert passed_on(text, chunk(1, 0, "one "), chunk(2, 0, "uno "), chunk(2, 1, "dos")) == ["one ", "", ""]
    with pytest.raises(ProviderFailed, match="Idempotency-Key") as differs:
        text.finish(result("uno dos"))
    assert (differs.value.charged, differs.value.retryable) == (True, False)


def test_pieces_of_an_attempt_that_is_void_are_not_passed_on() -> None:
    text = ChunkAssembler()
    assert passed_on(text, chunk(2, 0, "uno "), chunk(1, 0, "one "), chunk(1, 1, "two"), chunk(2, 1, "dos")) == [
        "uno ", "", "", "dos",
    ]  # fmt: skip


def test_an_attempt_that_comes_after_a_lost_piece_begins_anew() -> None:
    text = ChunkAssembler()
    assert passed_on(text, chunk(1, 1, "two"), chunk(2, 0, "one "), chunk(2, 1, "two")) == ["", "one ", "two"]


PIECES = st.builds(chunk, st.integers(0, 3), st.integers(0, 4), st.sampled_from(["", "a", "b", "ab", "ba", "aab"]))


@given(st.lists(PIECES, max_size=12), st.text("ab", max_size=12))
def test_whatever_comes_what_was_passed_on_begins_the_answer_or_the_stream_ends_with_an_error(
    pieces: list[Chunk], answer: str
) -> None:
    text = ChunkAssembler()
    said = "".join(passed_on(text, *pieces))
    if answer.startswith(said):
        assert said + text.finish(result(answer)) == answer
    else:
        with pytest.raises(ProviderFailed):
            text.finish(result(answer))


@given(st.lists(st.lists(st.sampled_from(["a", "b", "ab", "abb"]), max_size=6), min_size=1, max_size=3), st.data())
def test_of_pieces_that_are_lost_or_repeated_what_is_passed_on_begins_the_answer_of_their_attempt(
    attempts: list[list[str]], data: st.DataObject
) -> None:
    sent = [chunk(number, seq, delta) for number, said in enumerate(attempts, 1) for seq, delta in enumerate(said)]
    kept = [piece for piece in sent for _ in range(data.draw(st.integers(0, 2)))]
    text = ChunkAssembler()
    said = "".join(passed_on(text, *kept))
    assert any("".join(attempt).startswith(said) for attempt in attempts)


# Tool calls.


def call_chunk(attempt: int, seq: int, index: int, arguments: str, call_id: str | None = None) -> Chunk:
    piece = ToolCallChunk(index=index, id=call_id, name=call_id and "weather", arguments=arguments)
    return Chunk(attempt=attempt, seq=seq, delta="", tool_call=piece)


def called(*calls: tuple[str, str]) -> Result:
    tool_calls = [ToolCall(id=call_id, name="weather", arguments=arguments) for call_id, arguments in calls]
    return result("").model_copy(update={"output": [OutputMessage(content="", tool_calls=tool_calls)]})


def passed_on_calls(text: ChunkAssembler, *chunks: Chunk) -> list[tuple[int, str | None, str]]:
    added = [text.add_call_chunk(piece, piece.tool_call) for piece in chunks if piece.tool_call is not None]
    return [(piece.index, piece.id, piece.arguments) for piece in added if piece is not None]


def test_the_pieces_of_calls_are_passed_on_and_then_what_is_left() -> None:
    text = ChunkAssembler()
    pieces = [call_chunk(1, 0, 0, "", "c1"), call_chunk(1, 1, 0, '{"a"'), call_chunk(1, 2, 1, "{", "c2")]
    assert passed_on_calls(text, *pieces) == [(0, "c1", ""), (0, None, '{"a"'), (1, "c2", "{")]
    rest = text.finish_calls(called(("c1", '{"a": 1}'), ("c2", "{}"), ("c3", "{}")))
    assert [(piece.index, piece.id, piece.arguments) for piece in rest] == [
        (0, None, ": 1}"), (1, None, "}"), (2, "c3", "{}"),
    ]  # fmt: skip
    assert not text.has_output


def test_a_later_attempt_that_calls_the_same_goes_on_and_one_that_differs_ends_with_an_error() -> None:
    text = ChunkAssembler()
    first = [call_chunk(1, 0, 0, '{"a', "c1")]
    assert passed_on_calls(text, *first, call_chunk(2, 0, 0, '{"a": 1', "c1")) == [(0, "c1", '{"a'), (0, None, '": 1')]
    for answer in (called(("c9", '{"a": 1}')), called(("c1", '{"b": 1}')), called()):
        with pytest.raises(ProviderFailed, match="Idempotency-Key"):
            text.finish_calls(answer)


def test_after_a_lost_piece_of_a_call_nothing_is_passed_on_until_the_end() -> None:
    text = ChunkAssembler()
    assert passed_on_calls(text, call_chunk(1, 1, 0, "{", "c1"), call_chunk(1, 2, 0, "}")) == []
    assert [piece.arguments for piece in text.finish_calls(called(("c1", "{}")))] == ["{}"]


def reasoning(attempt: int, seq: int, **fields: Any) -> tuple[Chunk, ReasoningChunk]:
    piece = ReasoningChunk(index=0, **fields)
    return Chunk(attempt=attempt, seq=seq, delta="", reasoning=piece), piece


def reasoned(*pieces: Reasoning) -> Result:
    output = [OutputMessage(content="", reasoning=list(pieces))]
    return Result(output=output, raw_text="", target="t", call_count=1, max_calls=1)


def test_reasoning_that_was_not_sent_follows_at_the_end() -> None:
    assembler = ChunkAssembler()
    assert assembler.add_reasoning_chunk(*reasoning(1, 0, text="H")) == ReasoningChunk(index=0, text="H")
    whole = reasoned(Reasoning(text="Hm.", signature="s"), Reasoning(redacted="r"))
    assert assembler.finish_reasoning(whole) == [
        ReasoningChunk(index=0, text="m.", signature="s"),
        ReasoningChunk(index=1, redacted="r"),
    ]


def test_a_retry_that_repeats_the_reasoning_continues_it_and_signs_it_once() -> None:
    assembler = ChunkAssembler()
    for attempt, text in ((1, "H"), (2, "Hm.")):
        assembler.add_reasoning_chunk(*reasoning(attempt, 0, text=text))
    assert assembler.add_reasoning_chunk(*reasoning(2, 1, signature="s")) == ReasoningChunk(index=0, signature="s")
    assert assembler.add_reasoning_chunk(*reasoning(3, 0, text="Hm.")) is None
    assert assembler.add_reasoning_chunk(*reasoning(3, 1, signature="another")) is None
    assert assembler.finish_reasoning(reasoned(Reasoning(text="Hm.", signature="another"))) == []


@pytest.mark.parametrize("retried", [[{"text": "A"}], [{"text": "H"}, {"signature": "s"}]])
def test_a_retry_that_reasons_otherwise_ends_the_stream(retried: list[dict[str, str]]) -> None:
    assembler = ChunkAssembler()
    assembler.add_reasoning_chunk(*reasoning(1, 0, text="Hm."))
    for seq, fields in enumerate(retried):
        assert assembler.add_reasoning_chunk(*reasoning(2, seq, **fields)) is None
    for whole in (reasoned(Reasoning(text="".join(fields.get("text", "") for fields in retried))), reasoned()):
        with pytest.raises(ProviderFailed):
            assembler.finish_reasoning(whole)
