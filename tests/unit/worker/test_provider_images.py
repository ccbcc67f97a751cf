"""Images over the real wire: sent as they are, or as a URL that the provider reads, and never fetched by the worker."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import BadRequest
from quintain_worker.providers.provider import Billing, ProviderFailure
from support.model_server import ModelServer, ScriptedResponse, model_server
from support.model_wires import ANTHROPIC, CHAT, RESPONSES, WIRES, Wire

DATA = base64.b64encode(bytes(range(256))).decode()
IN_PLACE = f"data:image/png;base64,{DATA}"
ELSEWHERE = "https://example.org/a%20cat?x=1&y=é"

wires = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


def image(url: object, **fields: object) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


async def answer_of(server: ModelServer, wire: Wire, message: dict[str, object], **target: object) -> None:
    provider = wire.provider(server.url, **target)
    try:
        await provider.answer(InvokeRequest.model_validate({"messages": [message]}), timeout_seconds=10)
    finally:
        await provider.close()


async def sent(server: ModelServer, wire: Wire, *parts: dict[str, object], **target: object) -> object:
    """The content that the provider was sent for these parts of a user's message."""
    server.set_responses(ScriptedResponse(body=wire.answer("A cat.")))
    await answer_of(server, wire, {"role": "user", "content": list(parts)}, **target)
    body: dict[str, Any] = server.requests[0].body
    return body["input" if wire is RESPONSES else "messages"][0]["content"]


@pytest.mark.parametrize("url", [IN_PLACE, ELSEWHERE])
async def test_openai_gets_an_image_as_it_was_written(server: ModelServer, url: str) -> None:
    parts = [{"type": "text", "text": "What?"}, image(url), {"type": "text", "text": ""}, image(url, detail="high")]
    assert await sent(server, CHAT, *parts) == parts


async def test_the_responses_api_gets_an_image_in_its_own_words(server: ModelServer) -> None:
    content = await sent(server, RESPONSES, image(IN_PLACE), image(ELSEWHERE, detail="low"))
    assert content == [
        {"type": "input_image", "image_url": IN_PLACE, "detail": "auto"},
        {"type": "input_image", "image_url": ELSEWHERE, "detail": "low"},
    ]


async def test_anthropic_gets_an_image_in_its_own_words(server: ModelServer) -> None:
    content = await sent(server, ANTHROPIC, image(IN_PLACE), image(ELSEWHERE, detail="auto"))
    assert content == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
        {"type": "image", "source": {"type": "url", "url": ELSEWHERE}},
    ]


@wires
async def test_the_worker_fetches_no_url(server: ModelServer, wire: Wire) -> None:
    async with model_server() as elsewhere:
        elsewhere.set_responses(ScriptedResponse(body=b"a cat", headers={"content-type": "image/png"}))
        url = elsewhere.url.replace("http://", "https://")
        assert url in str(await sent(server, wire, image(f"{url}/x.png"), image_urls="any"))
        assert elsewhere.connections == 0


async def refusal_message(server: ModelServer, wire: Wire, message: dict[str, object]) -> str:
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(server, wire, message)
    assert isinstance(caught.value.fault, BadRequest)
    assert (caught.value.billing, caught.value.retryable, server.requests) == (Billing.UNBILLED, False, [])
    return caught.value.fault.message


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (image("http://example.org/x.png"), "image_url.url: write it as https://"),
        (image("file:///etc/passwd"), "image_url.url: write it as https://"),
        (image("https://[oops"), "image_url.url: write it as https://"),
        (image("x.png"), "image_url.url: write it as https://"),
        (image("data:image/svg+xml;base64,AAAA"), "image_url.url: a data URL holds image/png, "),
        (image("data:text/plain;base64,AAAA"), "image_url.url: a data URL holds image/png, "),
        (image("data:image/png,AAAA"), "image_url.url: a data URL holds image/png, "),
        (image("data:image/png;base64,A?AA"), "image_url.url: what follows the comma is not base64"),
        (image("data:image/png;base64,AAA"), "image_url.url: what follows the comma is not base64"),
    ],
)
@wires
async def test_an_image_that_is_none_is_refused_by_name(
    server: ModelServer, wire: Wire, part: dict[str, object], field: str
) -> None:
    content = [{"type": "text", "text": "What?"}, part]
    message = await refusal_message(server, wire, {"role": "user", "content": content})
    assert message.startswith(f"messages[0].content[1].{field}")


#: Parts that the chat API may have, and no other.
OTHER_PARTS: list[tuple[dict[str, object], str]] = [
    ({"type": "image_url", "image_url": "https://example.org/x.png"}, ".image_url: "),
    ({"type": "image_url"}, ".image_url: "),
    (image(5), ".image_url: "),
    (image(IN_PLACE, size=3), ".image_url.size: "),
    ({"type": "input_audio", "input_audio": {}}, ": this target takes text, image_url and file parts only"),
    ({"type": "text"}, ": this target takes text, image_url and file parts only"),
    ({"type": "text", "text": "q", "priority": 1}, ".priority: "),
]


@pytest.mark.parametrize(("part", "says"), OTHER_PARTS)
@pytest.mark.parametrize("wire", [RESPONSES, ANTHROPIC], ids=lambda wire: wire.name)
async def test_other_parts_are_refused_by_name(
    server: ModelServer, wire: Wire, part: dict[str, object], says: str
) -> None:
    message = await refusal_message(server, wire, {"role": "user", "content": [part]})
    assert message.startswith(f"messages[0].content[0]{says}")


@pytest.mark.parametrize("part", [part for part, _ in OTHER_PARTS])
async def test_the_chat_api_gets_every_part_as_it_was_written(server: ModelServer, part: dict[str, object]) -> None:
    assert await sent(server, CHAT, part) == [part]


async def test_anthropic_gets_no_empty_text(server: ModelServer) -> None:
    parts = [{"type": "text", "text": ""}, {"type": "text", "text": "What?"}]
    assert await sent(server, ANTHROPIC, *parts) == [parts[1]]
    server.requests.clear()
    message = await refusal_message(server, ANTHROPIC, {"role": "user", "content": parts[:1]})
    assert message.startswith("messages[0].content: ")


@pytest.mark.parametrize("role", ["system", "assistant", "tool"])
@wires
async def test_only_the_user_shows_images(server: ModelServer, wire: Wire, role: str) -> None:
    message = await refusal_message(
        server, wire, {"role": role, "toolCallId": "c" if role == "tool" else None, "content": [image(ELSEWHERE)]}
    )
    assert message == "messages[0].content[0]: this target takes text parts only here"


async def test_a_detail_that_anthropic_does_not_take_is_refused_by_name(server: ModelServer) -> None:
    message = await refusal_message(server, ANTHROPIC, {"role": "user", "content": [image(ELSEWHERE, detail="low")]})
    assert message.startswith("messages[0].content[0].image_url.detail: anthropic does not take it")


PDF = f"data:application/pdf;base64,{DATA}"


def file(**fields: object) -> dict[str, object]:
    return {"type": "file", "file": fields}


async def test_a_pdf_reaches_every_provider_in_its_own_words(server: ModelServer) -> None:
    part = file(file_data=PDF, filename="paper.pdf")
    [chat] = as_list(await sent(server, CHAT, part))
    assert (chat["type"], chat["file"]["file_data"]) == ("file", PDF)
    server.requests.clear()
    [responses] = as_list(await sent(server, RESPONSES, part))
    assert (responses["type"], responses["file_data"]) == ("input_file", PDF)
    server.requests.clear()
    source = {"type": "base64", "media_type": "application/pdf", "data": DATA}
    assert as_list(await sent(server, ANTHROPIC, part)) == [
        {"type": "document", "source": source, "title": "paper.pdf"}
    ]


def as_list(content: object) -> list[Any]:
    assert isinstance(content, list)
    return content


OTHER_FILES = [
    file(),
    file(file_url="https://example.org/a.pdf"),
    file(file_data=""),
    file(file_data="no URL"),
    file(file_data=IN_PLACE),
    file(file_data="data:application/pdf;base64,no base64"),
    file(file_data="data:text/html;base64,aGk="),
]


@pytest.mark.parametrize(
    ("wire", "part"),
    [
        (CHAT, file(file_id="file_1")),
        *((wire, part) for wire in (RESPONSES, ANTHROPIC) for part in [*OTHER_FILES, file(file_id="file_1")]),
    ],
    ids=lambda value: value.name if isinstance(value, Wire) else "",
)
async def test_a_file_that_is_no_pdf_in_the_message_is_refused_by_name(
    server: ModelServer, wire: Wire, part: dict[str, object]
) -> None:
    with pytest.raises(ProviderFailure) as refused:
        await answer_of(server, wire, {"role": "user", "content": [part]})
    assert isinstance(refused.value.fault, BadRequest)
    assert refused.value.fault.message.startswith("messages[0].content[0]")
    assert (refused.value.billing, server.requests) == (Billing.UNBILLED, [])


@pytest.mark.parametrize("part", OTHER_FILES)
async def test_the_chat_api_gets_every_file_in_the_message(server: ModelServer, part: dict[str, object]) -> None:
    assert await sent(server, CHAT, part) == [part]


def asking(url: str) -> InvokeRequest:
    return InvokeRequest.model_validate({"messages": [{"role": "user", "content": [image(url)]}]})


@wires
async def test_a_target_may_refuse_the_urls_of_images(server: ModelServer, wire: Wire) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer("A cat.")))
    provider = wire.provider(server.url, image_urls="refuse")
    try:
        with pytest.raises(ProviderFailure, match="image_url.url"):
            await provider.answer(asking(ELSEWHERE), timeout_seconds=10)
        assert server.requests == []
        await provider.answer(asking(IN_PLACE), timeout_seconds=10)
    finally:
        await provider.close()
