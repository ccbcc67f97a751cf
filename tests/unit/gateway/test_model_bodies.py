"""Bodies of OpenAI's and Anthropic's APIs: each is read, or refused as a bad request, and published as it was sent."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from quintain.apis.requests import CONVERSATION_APIS, request_to_chat
from quintain.apis.streams import translate_answer
from quintain.apis.translation import Translation, read_usage
from quintain.contracts.api_request import ApiName, ApiRequest, read_request
from quintain.contracts.invoke import (
    CUT_REASONS,
    InvokeRequest,
    OutputMessage,
    Reasoning,
    ReasoningChunk,
    TokenUsage,
)
from quintain.contracts.quota import TryOutcome
from quintain.errors import BadRequest, Throttled
from quintain_gateway.bodies import BODIES, parse_body
from quintain_gateway.endpoint import OPENAI
from quintain_gateway.response_writer import MAX_NAME_LENGTH, format_field_names
from quintain_worker.providers.api_conversation import answer_in_words, check_conversation, conversation_of
from quintain_worker.providers.provider import Billing, Delta, OnText, ProviderAnswer, ProviderFailure
from support.model_calls import CONVERSATIONS, QUESTIONS, whole_and_streamed

NO_HEADERS = Headers()
ASK: dict[ApiName, dict[str, Any]] = {api: {"model": "t", **fields} for api, fields in QUESTIONS.items()}
HELLO: Any = QUESTIONS["chat"]["messages"]
CHAT = b'{"model": "t", "messages": [{"role": "user", "content": "x"}], %s}'


def request_of(api: ApiName, **more: object) -> ApiRequest:
    """The only request of a body."""
    [request] = parse_body(api, json.dumps({**ASK[api], **more}).encode(), NO_HEADERS).requests
    return request


def test_what_is_published_is_what_was_sent() -> None:
    body = CHAT % (
        b'"n": 2, "stream": true, "stream_options": {"include_usage": true}, "seed": 1.0, "stop": null, "a": "\\u00e9"'
    )
    headers = Headers(raw=[(b"anthropic-beta", b"b"), (b"x-other", b"o"), (b"anthropic-beta", b"c,d")])
    parsed = parse_body("chat", body, headers)
    assert (parsed.target, len(parsed.requests), parsed.stream, parsed.include_usage) == ("t", 2, True, True)
    assert parsed.requests[0] == parsed.requests[1]
    published = parsed.requests[0].body.text
    assert published == '{"messages":[{"role": "user", "content": "x"}],"seed":1.0,"stop":null,"a":"\\u00e9"}'
    assert parsed.requests[0].headers == {"anthropic-beta": "b,c,d"}
    assert read_request(parsed.requests[0].to_wire()) == parsed.requests[0]


@pytest.mark.parametrize("api", ["responses", "messages", "embeddings"])
def test_an_api_without_choices_makes_one_call(api: ApiName) -> None:
    assert request_of(api, n=3).body.values["n"] == 3


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


# Bodies that are refused.


def read_whole(api: ApiName, body: bytes) -> None:
    """Read a body as the gateway does, and its conversation as a worker that is no model's."""
    for request in parse_body(api, body, NO_HEADERS).requests:
        if api in CONVERSATION_APIS:
            check_conversation(request)
            translation = Translation("it")
            conversation_of(request_to_chat(api, request.body.values, translation), translation, request)


#: By API and field: values that it may not have, beside a question; a field with a dot is within one.
WRONG: dict[ApiName, dict[str, list[Any]]] = {
    "chat": {
        "model": ["", 5, None], "messages": [[], "hi"], "n": [0, 129, -1, "2", 1.5, True, [], 10**30],
        "stream": ["true", 1, []], "stream_options": [5, []], "stream_options.include_usage": [{"include_usage": 1}],
        "temperature": ["hot", True, [], {}], "max_tokens": [0, {}, -1, "5", 1.5, True, "x"],
        "max_completion_tokens": ["x"], "seed": ["x", 1.5, True], "stop": [5, [5], {}],
        "response_format": ["json", 5, []], "tools": ["x", {}, ["x"]], "tool_choice": [5, []],
        "top_p": [1.5, -1, "0.2", True], "min_p": [2], "top_k": ["x", 1.5], "frequency_penalty": ["x"],
        "logit_bias": [5, {"a": "b"}], "logprobs": [5, "true"], "top_logprobs": [-1, True], "reasoning_effort": [5],
        "parallel_tool_calls": ["no"], "modalities": ["text"], "extra_body": [5, {}],
    },
    "responses": {
        "model": [""], "input": ["", [], 5, [5]], "max_output_tokens": [0, "x"], "top_p": [2],
        "stream": ["yes"], "text.format": [{"format": "json"}],
        "tools.0": [[{"type": "web_search"}]], "tools.0.name": [[{"type": "function", "name": ""}]],
        "tools.0.parameters": [[{"type": "function", "name": "f", "parameters": 5}]],
    },
    "completions": {"prompt": [[], [[]], ["x", 5], {"a": 1}], "n": [0]},
    "embeddings": {"input": ["", [], [""], [1.5]]},
    "messages": {
        "model": ["", 5, None, []], "max_tokens": [-1, "5", 1.5, True, None], "system": [5, {}, [5], ["x"]],
        "messages": [[], "hi", [None], [{}], [{"role": "king", "content": "x"}], [{"role": "user"}]],
        "temperature": ["hot", True], "stop_sequences": ["x", [5], {}], "stream": ["true", 1],
        "tools": ["x", [5], [{}], [{"name": "a"}], [{"name": 5, "input_schema": {}}]],
        "output_config": [5, {"format": {"type": "text"}}, {"format": {"type": "json_schema"}}],
        "tool_choice": ["auto", {}, {"type": "some"}, {"type": "tool"}], "system.0.text": [[{"type": "text"}]],
    },
}  # fmt: skip


def turn(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", **fields}]}


def item(**fields: object) -> dict[str, object]:
    return {"input": [fields]}


def said(*content: object) -> dict[str, object]:
    return item(role="user", content=[*content])


#: By API: messages that cannot be, with the field that is named.
WRONG_MESSAGES: list[tuple[ApiName, dict[str, object], str]] = [
    ("chat", {"messages": [None]}, "messages.0"),
    ("chat", {"messages": ["hi"]}, "messages.0"),
    ("chat", turn(), "messages.0.content"),
    ("chat", turn(content=5), "messages.0.content"),
    ("chat", turn(content=["x"]), "messages.0.content"),
    ("chat", {"messages": [{"content": "x"}]}, "messages.0.role"),
    ("chat", turn(role="king", content="x"), "messages.0.role"),
    ("chat", turn(role="assistant", tool_calls=5), "messages.0.tool_calls"),
    ("chat", turn(role="assistant", tool_calls=[{}]), "messages.0.tool_calls.0.id"),
    ("chat", turn(role="tool", content="x", tool_call_id=5), "messages.0.tool_call_id"),
    ("responses", item(role="king", content="x"), "input.0.role"),
    ("responses", item(role="user"), "input.0.content"),
    ("responses", said({"type": "audio"}), "input.0.content.0.type"),
    ("responses", said({"type": "input_text"}), "input.0.content.0.text"),
    ("responses", said({"type": "input_file", "file_id": "f"}), "input.0.content.0.file_id"),
    ("responses", item(type="item_reference", id="msg_1"), "input.0.type"),
    ("responses", item(type="function_call", name="x"), "input.0.call_id"),
    ("responses", item(type="function_call_output", call_id="", output="x"), "input.0.call_id"),
    ("responses", item(type="web_search_call"), "input.0.type"),
    # It is named where its caller wrote it, although what is sent has another message before it.
    (
        "responses",
        {"instructions": "s", **item(type="function_call", call_id="c", name=5, arguments="{}")},
        "input.0.tool_calls.0.name",
    ),
    (
        "messages",
        {
            "system": "s",
            "messages": [
                *HELLO,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": 5, "input": {}}]},
            ],
        },
        "messages.1.tool_calls.0.name",
    ),
    ("messages", turn(content=5), "messages.0.content"),
    *(
        ("messages", turn(content=[block]), f"messages.0.content{field}")
        for block, field in [
            (5, ""),
            ({}, ".0.type"),
            ({"type": "thinking", "thinking": "x"}, ".0.type"),
            ({"type": "tool_use", "id": "t", "name": "n", "input": {}}, ".0.type"),
            ({"type": "text"}, ".0.text"),
            ({"type": "text", "text": 5}, ".0.text"),
            ({"type": "image"}, ".0.source"),
            ({"type": "image", "source": {"type": "file", "file_id": "x"}}, ".0.source"),
            ({"type": "image", "source": {"type": "url"}}, ".0.source"),
            ({"type": "tool_result"}, ".0.tool_use_id"),
            ({"type": "tool_result", "tool_use_id": "t", "content": [{}]}, ".0.content.0.type"),
        ]
    ),
]


def wrong_bodies(api: ApiName) -> Iterator[tuple[bytes, str]]:
    """Bodies that are none, with the field that is named; none where nothing of the body can be read."""
    yield from ((body, "") for body in (b"{", b"", b"null", b"[]", b'"text"', b"\xff\xfe", b"[" * 100_000))
    yield b"{}", "model"
    for field in QUESTIONS[api].keys() - {"prompt"}:
        yield json.dumps({name: value for name, value in ASK[api].items() if name != field}).encode(), field
    for field, values in WRONG[api].items():
        yield from ((json.dumps({**ASK[api], field.split(".")[0]: value}).encode(), field) for value in values)
    yield from ((json.dumps({**ASK[api], **more}).encode(), field) for own, more, field in WRONG_MESSAGES if own == api)
    if api == "chat":
        yield CHAT % b'"temperature": NaN', "temperature"
        yield CHAT % b'"seed": 1e999', "seed"
        yield CHAT % b'"tools": [{"a": -Infinity}]', "tools.0.a"


@pytest.mark.parametrize("api", BODIES)
def test_a_bad_body_is_refused_by_its_field(api: ApiName) -> None:
    for body, field in wrong_bodies(api):
        with pytest.raises(BadRequest) as refused:
            read_whole(api, body)
            pytest.fail(f"{body[:200]!r} was read")
        error = json.loads(bytes(OPENAI.error_response(refused.value).body))["error"]
        told = f"{body[:200]!r} is answered {error}"
        assert (error["code"], error["type"]) == ("bad_request", "invalid_request_error"), told
        assert (error["charged"], error["message"] != "") == (False, True), told
        if api != "messages" and field:
            assert error["param"] == field or error["param"].startswith(f"{field}."), told
        assert field in error["message"], told


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


@settings(max_examples=2 * settings.default.max_examples)
@given(
    api=st.sampled_from([*BODIES]),
    body=JSON
    | st.dictionaries(FIELDS, JSON)
    | st.lists(TURNS, max_size=2).map(lambda turns: {"messages": turns, "input": turns}),
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


# Answers of what is no model, in each API.


class Answers:
    """A provider that says these pieces where somebody listens, and answers this."""

    def __init__(self, answer: ProviderAnswer, *pieces: Delta) -> None:
        self._answer, self._pieces = answer, pieces

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Answer."""
        for piece in self._pieces if on_text is not None else ():
            on_text(piece)
        return self._answer

    async def close(self) -> None:
        """Nothing is open."""


async def body_of(api: ApiName, provider: Answers, heard: list[Any] | None = None) -> dict[str, Any]:
    """The body of the answer in this API."""
    listener = None if heard is None else heard.append

    async def ask(request: InvokeRequest, seconds: float, on_text: OnText | None) -> ProviderAnswer:
        return await provider.answer(request, timeout_seconds=seconds, on_text=on_text)

    answer = await answer_in_words(ask, request_of(api), 1, listener)
    assert answer.body is not None
    return dict(answer.body)


@pytest.mark.parametrize("api", CONVERSATIONS)
async def test_a_failure_says_in_each_api_how_the_provider_took_the_call(api: ApiName) -> None:
    failure = ProviderFailure(Throttled("slow down"), Billing.UNBILLED, retryable=True, retry_after_seconds=3)

    async def fail(*_: object) -> ProviderAnswer:
        raise failure

    with pytest.raises(ProviderFailure) as caught:
        await answer_in_words(fail, request_of(api), 1)
    told = caught.value
    assert (told.retryable, told.retry_after_seconds, told.outcome) == (True, 3, TryOutcome.THROTTLED)


@pytest.mark.parametrize("api", CONVERSATIONS)
async def test_the_whole_answer_counts_whatever_its_pieces_were(api: ApiName) -> None:
    heard: list[Delta] = []
    body = str(await body_of(api, Answers(ProviderAnswer(text="one"), "uno"), heard))
    assert ("uno" in str(heard), "one" in body, "uno" in body) == (True, True, False)


@pytest.mark.parametrize("api", CONVERSATIONS)
async def test_every_count_is_told_in_the_words_of_the_api(api: ApiName) -> None:
    usage = TokenUsage(input=2021, output=9, cached=4, cache_write=2000, reasoning=3)
    body = await body_of(api, Answers(ProviderAnswer(text="one", token_usage=usage)))
    assert read_usage("chat", translate_answer(api, "chat", body)["usage"]) == usage


@pytest.mark.parametrize("reason", sorted(CUT_REASONS))
async def test_an_answer_that_a_vendor_cut_is_cut_in_openais_words(reason: str) -> None:
    body = await body_of("chat", Answers(ProviderAnswer(text="one", finish_reason=reason.upper())))
    assert body["choices"][0]["finish_reason"] == "length"


async def test_reasoning_is_streamed_in_the_words_of_the_api_and_continued_by_the_answer() -> None:
    heard: list[Any] = []
    message = OutputMessage(content="one", reasoning=[Reasoning(text="Well, yes.")])
    pieces = (ReasoningChunk(index=0, text="Well, "), ReasoningChunk(index=0, text="yes."), "o")
    body = await body_of("messages", Answers(ProviderAnswer(text="one", output=[message]), *pieces), heard)
    deltas = [event["delta"] for event in heard if event["type"] == "content_block_delta"]
    assert [delta.get("thinking") or delta.get("text") for delta in deltas] == ["Well, ", "yes.", "o", "ne"]
    assert [block.get("thinking") or block.get("text") for block in body["content"]] == ["Well, yes.", "one"]


@whole_and_streamed
@pytest.mark.parametrize("api", CONVERSATIONS)
async def test_half_of_a_character_is_replaced_in_every_api(api: ApiName, is_streamed: bool) -> None:
    pieces = ["a\ud83c", "\udfc7b", "\ud83c"]
    heard: list[Delta] = []
    body = await body_of(api, Answers(ProviderAnswer(text="".join(pieces)), *pieces), heard if is_streamed else None)
    assert '"a🏇b\ufffd"' in json.dumps(body, ensure_ascii=False)
    assert json.dumps(heard, ensure_ascii=False).encode()


@given(st.lists(st.text(max_size=100), max_size=40))
def test_names_chosen_by_callers_make_a_header_of_bounded_length(names: list[str]) -> None:
    line = format_field_names(names)
    assert all(" " <= letter <= "~" for letter in line)
    assert len(line) < 22 * (MAX_NAME_LENGTH + 2)
