"""Bodies of OpenAI's and Anthropic's APIs: each is read, or refused as a bad request, and published as it was sent."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from quintain.apis.requests import CONVERSATION_APIS, request_to_chat
from quintain.apis.streams import translate_answer
from quintain.apis.translation import Translation, read_usage
from quintain.contracts.api_request import ApiName, read_request
from quintain.contracts.invoke import (
    CUT_REASONS,
    InvokeRequest,
    OutputMessage,
    Reasoning,
    ReasoningChunk,
    TokenUsage,
)
from quintain.errors import BadRequest
from quintain_gateway.bodies import BODIES, parse_body
from quintain_gateway.response_writer import MAX_NAME_LENGTH, format_field_names
from quintain_worker.providers.api_conversation import ApiConversation, check_conversation, conversation_of
from quintain_worker.providers.provider import Delta, OnText, ProviderAnswer

NO_HEADERS = Headers()
HELLO: Any = [{"role": "user", "content": "x"}]
ASK: dict[ApiName, dict[str, Any]] = {
    "chat": {"model": "t", "messages": HELLO},
    "responses": {"model": "t", "input": "x"},
    "completions": {"model": "t", "prompt": "x"},
    "embeddings": {"model": "t", "input": "x"},
    "messages": {"model": "t", "max_tokens": 5, "messages": HELLO},
}
CHAT = b'{"model": "t", "messages": [{"role": "user", "content": "x"}], %s}'


def test_what_is_published_is_what_was_sent() -> None:
    body = CHAT % (
        b'"n": 2, "stream": true, "stream_options": {"include_usage": true}, "seed": 1.0, "stop": null, "a": "\\u00e9"'
    )
    parsed = parse_body(
        "chat", body, Headers(raw=[(b"anthropic-beta", b"b"), (b"x-other", b"o"), (b"anthropic-beta", b"c,d")])
    )
    assert (parsed.target, len(parsed.requests), parsed.stream, parsed.include_usage) == ("t", 2, True, True)
    assert parsed.requests[0] == parsed.requests[1]
    published = parsed.requests[0].body.text
    assert published == '{"messages":[{"role": "user", "content": "x"}],"seed":1.0,"stop":null,"a":"\\u00e9"}'
    assert parsed.requests[0].headers == {"anthropic-beta": "b,c,d"}
    assert read_request(parsed.requests[0].to_wire()) == parsed.requests[0]


@pytest.mark.parametrize("api", ["responses", "messages", "embeddings"])
def test_an_api_without_choices_makes_one_call(api: ApiName) -> None:
    [request] = parse_body(api, json.dumps({**ASK[api], "n": 3}).encode(), NO_HEADERS).requests
    assert request.body.values["n"] == 3


def test_each_prompt_is_a_request_and_a_list_of_tokens_is_one_prompt() -> None:
    def prompts(prompt: object) -> list[object]:
        body = json.dumps({"model": "t", "prompt": prompt}).encode()
        return [request.body.values["prompt"] for request in parse_body("completions", body, NO_HEADERS).requests]

    assert [prompts("a"), prompts(["a", "b"]), prompts([1, 2]), prompts([[1], [2]])] == [
        ["a"], ["a", "b"], [[1, 2]], [[1], [2]],
    ]  # fmt: skip


def test_a_pair_of_surrogates_and_an_escaped_backslash_are_text() -> None:
    body = CHAT % b'"user": "\\ud83d\\ude00", "a": "\\\\ud83d"'
    assert parse_body("chat", body, NO_HEADERS).requests[0].body.values["user"] == "\U0001f600"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
FIELDS = st.sampled_from([
    "model", "messages", "input", "prompt", "n", "stream", "stream_options", "temperature", "max_tokens", "stop",
    "text", "response_format", "tools", "tool_choice", "user", "system", "reasoning", "include", "metadata",
    "output_config",
])  # fmt: skip
KINDS = st.sampled_from([
    "text", "image", "tool_use", "tool_result", "document", "message", "function_call", "function_call_output",
    "reasoning", "input_text", "input_image", "input_file", "image_url", "file",
])  # fmt: skip
PARTS = st.fixed_dictionaries(
    {"type": KINDS | JSON},
    optional=dict.fromkeys(["text", "source", "id", "name", "input", "tool_use_id", "content", "image_url"], JSON),
)
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]) | JSON, "content": st.lists(PARTS, max_size=2) | JSON},
    optional=dict.fromkeys(["type", "tool_calls", "call_id", "output", "thinking_blocks"], JSON),
)


@pytest.mark.parametrize("api", BODIES)
@given(
    body=JSON
    | st.dictionaries(FIELDS, JSON)
    | st.lists(TURNS, max_size=2).map(lambda turns: {"messages": turns, "input": turns})
)
def test_whatever_is_sent_is_read_or_is_a_bad_request(api: ApiName, body: object) -> None:
    whole = {**ASK[api], **body} if isinstance(body, dict) else body
    with contextlib.suppress(BadRequest):
        for request in parse_body(api, json.dumps(whole).encode(), NO_HEADERS).requests:
            assert read_request(request.to_wire()) == request
            check_conversation(request)
            assert api in CONVERSATION_APIS
            translation = Translation("it", ignore_unsupported=True)
            conversation_of(request_to_chat(api, request.body.values, translation), translation, request).to_wire()


CALL_OF_NO_NAME = {"type": "tool_use", "id": "t", "name": 5, "input": {}}


@pytest.mark.parametrize(
    ("api", "more", "field"),
    [
        ("chat", {"max_completion_tokens": "x"}, "max_completion_tokens"),
        ("chat", {"max_tokens": "x"}, "max_tokens"),
        ("responses", {"max_output_tokens": "x"}, "max_output_tokens"),
        ("messages", {"stop_sequences": [5]}, "stop_sequences"),
        (
            "messages",
            {"system": "s", "messages": [*HELLO, {"role": "assistant", "content": [CALL_OF_NO_NAME]}]},
            "messages.1.tool_calls.0.name",
        ),
        (
            "responses",
            {"instructions": "s", "input": [{"type": "function_call", "call_id": "c", "name": 5, "arguments": "{}"}]},
            "input.0.tool_calls.0.name",
        ),
    ],
)
def test_a_value_that_no_conversation_has_is_named_where_its_caller_wrote_it(
    api: ApiName, more: dict[str, Any], field: str
) -> None:
    [request] = parse_body(api, json.dumps({**ASK[api], **more}).encode(), NO_HEADERS).requests
    translation = Translation("it")
    with pytest.raises(BadRequest) as refused:
        conversation_of(request_to_chat(api, request.body.values, translation), translation, request)
    assert refused.value.parameter == field
    assert refused.value.message.startswith(f"{field}: ")


class OtherPieces:
    """A provider whose pieces are not the begin of its answer."""

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Answer another text than the one that was heard."""
        assert on_text is not None
        on_text("uno")
        return ProviderAnswer(text="one")

    async def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_the_whole_answer_counts_whatever_its_pieces_were(api: ApiName) -> None:
    [request] = parse_body(api, json.dumps(ASK[api]).encode(), NO_HEADERS).requests
    heard: list[Delta] = []
    answer = await ApiConversation(OtherPieces()).answer(request, timeout_seconds=1, on_text=heard.append)
    assert "uno" in str(heard)
    assert "one" in str(answer.body)
    assert "uno" not in str(answer.body)


class CachedAnswer(OtherPieces):
    """A provider that counts what it read from its cache, and wrote to it."""

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Answer with all counts."""
        usage = TokenUsage(input=2021, output=9, cached=4, cache_write=2000, reasoning=3)
        return ProviderAnswer(text="one", token_usage=usage)


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_every_count_is_told_in_the_words_of_the_api(api: ApiName) -> None:
    [request] = parse_body(api, json.dumps(ASK[api]).encode(), NO_HEADERS).requests
    answer = await ApiConversation(CachedAnswer()).answer(request, timeout_seconds=1)
    assert answer.body is not None
    chat = translate_answer(api, "chat", dict(answer.body))
    assert read_usage("chat", chat["usage"]) == answer.token_usage


@dataclass
class EndsWith(OtherPieces):
    """A provider whose answers end for this reason."""

    reason: str

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Answer."""
        return ProviderAnswer(text="one", finish_reason=self.reason)


@pytest.mark.parametrize("reason", sorted(CUT_REASONS))
async def test_an_answer_that_a_vendor_cut_is_cut_in_openais_words(reason: str) -> None:
    [request] = parse_body("chat", json.dumps(ASK["chat"]).encode(), NO_HEADERS).requests
    answer = await ApiConversation(EndsWith(reason.upper())).answer(request, timeout_seconds=1)
    assert answer.body is not None
    assert answer.body["choices"][0]["finish_reason"] == "length"


class ThinkingAloud(OtherPieces):
    """A provider whose reasoning is heard before its text."""

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Answer in pieces."""
        assert on_text is not None
        on_text(ReasoningChunk(index=0, text="Well, "))
        on_text(ReasoningChunk(index=0, text="yes."))
        on_text("o")
        message = OutputMessage(content="one", reasoning=[Reasoning(text="Well, yes.")])
        return ProviderAnswer(text="one", output=[message])


async def test_reasoning_is_streamed_in_the_words_of_the_api_and_continued_by_the_answer() -> None:
    [request] = parse_body("messages", json.dumps(ASK["messages"]).encode(), NO_HEADERS).requests
    heard: list[Any] = []
    answer = await ApiConversation(ThinkingAloud()).answer(request, timeout_seconds=1, on_text=heard.append)
    deltas = [event["delta"] for event in heard if event["type"] == "content_block_delta"]
    assert [delta.get("thinking") or delta.get("text") for delta in deltas] == ["Well, ", "yes.", "o", "ne"]
    assert answer.body is not None
    assert [block.get("thinking") or block.get("text") for block in answer.body["content"]] == ["Well, yes.", "one"]


@given(st.lists(st.text(max_size=100), max_size=40))
def test_names_chosen_by_callers_make_a_header_of_bounded_length(names: list[str]) -> None:
    line = format_field_names(names)
    assert all(" " <= letter <= "~" for letter in line)
    assert len(line) < 22 * (MAX_NAME_LENGTH + 2)


class HalfCharacters(OtherPieces):
    """A program whose pieces end in the middle of a character, and whose answer does too."""

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Answer in halves."""
        pieces = ["a\ud83c", "\udfc7b", "\ud83c"]
        for piece in pieces if on_text is not None else ():
            on_text(piece)  # type: ignore[misc]
        return ProviderAnswer(text="".join(pieces))


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_half_of_a_character_is_replaced_in_every_api(api: ApiName, *, is_streamed: bool) -> None:
    [request] = parse_body(api, json.dumps(ASK[api]).encode(), NO_HEADERS).requests
    heard: list[Delta] = []
    listener = heard.append if is_streamed else None
    answer = await ApiConversation(HalfCharacters()).answer(request, timeout_seconds=1, on_text=listener)
    assert answer.body is not None
    assert '"a🏇b\ufffd"' in json.dumps(answer.body, ensure_ascii=False)
    assert json.dumps(heard, ensure_ascii=False).encode()
