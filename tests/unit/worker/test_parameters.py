"""Every setting at every provider, over the real wire: carried, translated or refused; and the table of it in the docs.

The table of ``docs/protocol/fields.md`` is what these providers were seen to receive. To write it again after a change
on purpose: ``QUINTAIN_RECORD_SNAPSHOTS=1 make test ARGS=tests/unit/worker/test_parameters.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quintain.apis.translation import DEFAULT_VALUES
from quintain.config.targets import CommandTarget, MockTarget, OpenAITarget, PythonTarget
from quintain.contracts.invoke import InvokeRequest, InvokeSettings
from quintain.errors import ConfigError, UnsupportedParameter
from quintain.settings import environment
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import Billing, Provider, ProviderAnswer, ProviderContext, ProviderFailure
from support.model_calls import added_paths, call, failed_call, wires
from support.model_server import ModelServer, ScriptedResponse
from support.model_wires import ANTHROPIC, CHAT, RESPONSES, WIRES, Wire
from support.pages import assert_documented

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}

#: A value of each setting that changes an answer, and what goes with it.
SAMPLES: Mapping[str, Mapping[str, Any]] = {
    "temperature": {"temperature": 0.7}, "maxTokens": {"maxTokens": 77}, "topP": {"topP": 0.2}, "topK": {"topK": 5},
    "minP": {"minP": 0.1}, "frequencyPenalty": {"frequencyPenalty": 0.5},
    "presencePenalty": {"presencePenalty": -0.5}, "repetitionPenalty": {"repetitionPenalty": 1.1},
    "logitBias": {"logitBias": {"50256": -100}}, "seed": {"seed": 7}, "stop": {"stop": ["END"]},
    "logprobs": {"logprobs": True}, "topLogprobs": {"topLogprobs": 3}, "reasoningEffort": {"reasoningEffort": "high"},
    "thinking": {"thinking": {"type": "enabled", "budget_tokens": 2048}}, "verbosity": {"verbosity": "low"},
    "modalities": {"modalities": ["text", "audio"]},
    "responseFormat": {"responseFormat": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
    "tools": {"tools": [TOOL]}, "toolChoice": {"toolChoice": "required", "tools": [TOOL]},
    "parallelToolCalls": {"parallelToolCalls": False, "tools": [TOOL]},
    "extraBody": {"extraBody": {"metadata": {"user_id": "u"}}},
}  # fmt: skip


async def ask(provider: Provider, settings: Mapping[str, Any]) -> ProviderAnswer:
    return await provider.answer(request_of(settings), timeout_seconds=10)


def request_of(settings: Mapping[str, Any]) -> InvokeRequest:
    return InvokeRequest.model_validate({"question": "q", "settings": dict(settings)})


async def body_of(server: ModelServer, wire: Wire, sent: Mapping[str, Any], **target: object) -> dict[str, Any]:
    """What a model's provider is sent for these settings."""
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    await call(wire.provider(server.url, **target), request_of(sent))
    return dict(server.requests[-1].body)


async def refusal_of(provider: Provider, settings: Mapping[str, Any]) -> UnsupportedParameter:
    failed = await failed_call(provider, request_of(settings))
    assert (failed.billing, failed.retryable, failed.fault.charged) == (Billing.UNBILLED, False, False)
    assert isinstance(failed.fault, UnsupportedParameter)
    return failed.fault


async def model_cell(server: ModelServer, wire: Wire, provider: Provider, name: str, own_name: str) -> str:
    """What happens to a setting at a provider of models, from the request that it receives."""
    samples = SAMPLES[name]
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    asked = len(server.requests)
    if await is_refused(provider, name):
        assert len(server.requests) == asked
        return "refused"
    await ask(provider, {key: value for key, value in samples.items() if key != name})
    with_it, without_it = (dict(request.body) for request in server.requests[-2:])
    if with_it.get(own_name) == samples[name] or (name == "extraBody" and with_it == without_it | samples[name]):
        return "carried"
    paths = sorted(set(added_paths(without_it, with_it)))
    assert paths, f"{name} had no effect on the request"
    return f"as {' and '.join(f'`{path}`' for path in paths)}"


async def is_refused(provider: Provider, name: str) -> bool:
    failure: ProviderFailure | None = None
    try:
        await ask(provider, SAMPLES[name])
    except ProviderFailure as error:
        failure = error
    assert failure is None or isinstance(failure.fault, UnsupportedParameter)
    assert failure is None or failure.fault.parameter in SAMPLES[name]
    return failure is not None


async def test_the_table_in_the_docs_is_what_the_providers_received(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert [info.alias for info in InvokeSettings.model_fields.values()] == [*SAMPLES, "unsupported"]
    (tmp_path / "seen_settings.py").write_text("def answer(request):\n    return request.settings.model_dump_json()\n")
    context = ProviderContext(tmp_path, dict(environment()))
    command = build_provider("c", CommandTarget(provider="command", command=[sys.executable, "-c", ""]), context)
    function = build_provider("f", PythonTarget(provider="python", callable="seen_settings:answer"), context)
    with monkeypatch.context() as patch:
        patch.setattr(OpenAITarget, "is_vendors_host", property(lambda _: True))
        models = [(CHAT, CHAT.provider(server.url))]
    models += [(wire, wire.provider(server.url)) for wire in WIRES]
    rows = []
    for own_name, info in InvokeSettings.model_fields.items():
        name = str(info.alias)
        if name == "unsupported":
            continue
        cells = [await model_cell(server, wire, provider, name, own_name) for wire, provider in models]
        cells += ["refused" if await is_refused(provider, name) else "carried" for provider in (function, command)]
        rows.append([name, *cells])
    for provider in (command, function, *(provider for _, provider in models)):
        await provider.close()
    models_heads = ["`openai`", "`openai` with `base_url`", "`openai`, `api: responses`", "`anthropic`"]
    heads = [*models_heads, "`python`", "`command`"]
    lines = [["setting", *heads], *([f"`{row[0]}`", *row[1:]] for row in rows)]
    assert_documented("parameters", lines)


@wires
async def test_a_default_value_is_accepted_everywhere(server: ModelServer, wire: Wire) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    for name, values in DEFAULT_VALUES.items():
        for value in (None, *values):
            assert (await call(wire.provider(server.url), request_of({name: value}))).ignored == ()


@wires
async def test_what_is_ignored_on_request_is_named(server: ModelServer, wire: Wire) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    settings = {"modalities": ["audio"], "best_guess": 1, "unsupported": "ignore", "temperature": 0.5}
    answer = await call(wire.provider(server.url), request_of(settings))
    assert sorted(answer.ignored) == ["best_guess", "modalities"]
    assert server.requests[0].body["temperature"] == 0.5
    assert not {"modalities", "best_guess", "unsupported"} & server.requests[0].body.keys()


async def test_a_setting_of_no_known_name_is_refused_and_the_nearest_one_named(
    server: ModelServer, tmp_path: Path
) -> None:
    (tmp_path / "never_called.py").write_text("def answer(request):\n    raise AssertionError\n")
    targets = [
        MockTarget(provider="mock"),
        CommandTarget(provider="command", command=["true"]),
        PythonTarget(provider="python", callable="never_called:answer"),
    ]
    context = ProviderContext(tmp_path, {})
    providers = [
        *(build_provider("it", target, context) for target in targets),
        *(w.provider(server.url) for w in WIRES),
    ]
    for provider in providers:
        fault = await refusal_of(provider, {"temprature": 0.5})
        assert (fault.parameter, "'temperature'" in fault.message) == ("temprature", True)
    assert not server.requests


@wires
@pytest.mark.parametrize("name", ["model", "messages", "input", "stream", "n", "temperature", "previous_response_id"])
async def test_the_extra_body_replaces_nothing_that_is_sent_already(server: ModelServer, wire: Wire, name: str) -> None:
    settings = request_of({"temperature": 0.5, "extraBody": {name: 1}})
    failed = await failed_call(wire.provider(server.url), settings)
    assert f"settings.extraBody.{name}: " in failed.fault.message
    assert (failed.fault.status, failed.billing, server.requests) == (400, Billing.UNBILLED, [])


@wires
async def test_the_targets_own_settings_stand_where_the_request_sets_none(server: ModelServer, wire: Wire) -> None:
    target = {"settings": {"top_p": 0.5, "extra_body": {"a": 1, "b": 1}}, "temperature": 0.25}
    body = await body_of(server, wire, {"temperature": 0.75, "extraBody": {"b": 2}}, **target)
    assert (body["top_p"], body["temperature"], body["a"], body["b"]) == (0.5, 0.75, 1, 2)


def test_a_targets_setting_that_its_provider_lacks_stops_the_worker() -> None:
    with pytest.raises(ConfigError) as caught:
        ANTHROPIC.provider("http://127.0.0.1:1", settings={"seed": 7})
    assert caught.value.message.startswith("targets.it.settings.seed: ")
    with pytest.raises(ConfigError, match=r"^targets\.it\."):  # what UTF-8 cannot write
        CHAT.provider("http://127.0.0.1:1", settings={"extra_body": {"user": "\ud800"}})


async def test_fields_that_share_an_object_are_sent_together(server: ModelServer) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    both = {"responseFormat": schema, "verbosity": "low"}
    assert set((await body_of(server, RESPONSES, both))["text"]) == {"format", "verbosity"}
    both = {"responseFormat": schema, "reasoningEffort": "low"}
    assert set((await body_of(server, ANTHROPIC, both))["output_config"]) == {"format", "effort"}
    both = {"tools": [TOOL], "toolChoice": "required", "parallelToolCalls": False}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    assert (await body_of(server, ANTHROPIC, both))["tool_choice"] == choice
