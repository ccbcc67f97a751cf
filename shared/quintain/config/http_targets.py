"""The model of targets behind an HTTP endpoint."""

from __future__ import annotations

import re
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, JsonValue, ValidationInfo, field_validator, model_validator

from quintain.config.http_template import JsonPointer, placeholders_of
from quintain.config.secrets import holds_reference, is_secret_header, iterate_strings, referenced_values
from quintain.config.target_fields import HttpStream, HttpUsage, TargetFields, WatchedTarget, is_unresolved

#: Headers that a request has anyway: they say where it goes and where it ends.
_RESERVED_HEADERS = frozenset(
    {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

#: What a preset decides.
_PRESET_KEYS = ("method", "body", "answer", "usage", "steps", "session", "stream")

#: The shortest value of a variable that is masked in messages: shorter ones are words of every text.
_MIN_SECRET_LENGTH = 4


class HttpTarget(TargetFields, WatchedTarget):
    """An agent behind an HTTP endpoint, asked with JSON."""

    _answers_requests = True

    provider: Literal["http"]
    url: str
    """Where it is. Placeholders such as {{ session }} may stand in its path and query, percent-encoded."""
    preset: Literal["a2a"] | None = None
    """A protocol that decides everything but the URL and the headers: the A2A protocol's JSON-RPC."""
    method: Literal["POST", "PUT", "PATCH", "GET"] = "POST"
    """The method of its requests."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers of its requests; a credential is a reference, such as Bearer ${{ BOT_KEY }}."""
    body: JsonValue = None
    """The body of its requests; {{ prompt }}, {{ messages }} and other placeholders become values of the call."""
    answer: JsonPointer | None = None
    """Where the text of the answer is, as a JSON pointer. If absent, the whole body is the text."""
    usage: HttpUsage | None = None
    """Where the tokens are that it used."""
    steps: JsonPointer | None = None
    """Where the list of its steps is: OpenTelemetry's names for GenAI, or OpenAI's messages with tool calls."""
    session: JsonPointer | None = None
    """Where its word for the conversation is, which {{ session }} of the next turn is."""
    stream: HttpStream | None = None
    """Where the text is in each event, if it answers with server-sent events."""
    adaptive: bool = True
    """Whether it has the quota of its URL and credentials, whose limits are found, where it names none."""

    @property
    def is_agent(self) -> bool:
        """An endpoint may act."""
        return True

    @property
    def keeps_conversation(self) -> bool:
        """Whether its requests have the messages, or name the conversation."""
        return self.preset is not None or not self.placeholders.isdisjoint({"messages", "session", "conversation_id"})

    @property
    def tells_steps(self) -> bool:
        """Whether it is known where its steps are."""
        return self.preset is not None or self.steps is not None

    @property
    def takes_images(self) -> bool:
        """Whether its requests have the messages as they are."""
        return "messages" in self.placeholders

    @property
    def placeholders(self) -> frozenset[str]:
        """The values of a call that its requests have."""
        return frozenset(placeholders_of([self.url, self.body]))

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message may show: its credentials, and the values of the variables in its requests."""
        raw = self._raw or {}
        found = [value for name, value in self.headers.items() if is_secret_header(name)]
        for key, resolved in (("url", self.url), ("headers", self.headers), ("body", self.body)):
            texts = zip(iterate_strings(raw.get(key)), iterate_strings(resolved), strict=False)
            found += [value for (_, text), (_, now) in texts for value in referenced_values(text, now)]
        return tuple(value for value in dict.fromkeys(found) if len(value) >= _MIN_SECRET_LENGTH)

    @property
    def public_headers(self) -> dict[str, str]:
        """Its headers without credentials."""
        return {name.lower(): value for name, value in self.headers.items() if not is_secret_header(name)}

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str, info: ValidationInfo) -> str:
        list(placeholders_of(url))
        if is_unresolved(url, info):
            return url
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("not a URL; write it as https://host/path")
        if "{" in parts.netloc:
            raise ValueError("its host is fixed; placeholders may stand in its path and query")
        if "@" in parts.netloc:
            raise ValueError("a URL holds no credentials; put them into headers")
        if parts.fragment:
            raise ValueError("the part from # on is never sent; leave it out")
        return url

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not _TOKEN.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a header")
            if name.lower() in _RESERVED_HEADERS:
                raise ValueError(f"{name}: it is set by the connection; leave it out")
            if not value.strip().isprintable() and not holds_reference(value):
                raise ValueError(f"{name}: its value has a character that no header may have")
            if "{{" in value and not holds_reference(value):
                raise ValueError(f"{name}: no value of a call enters a header; put it into body")
        return {name: value.strip() for name, value in headers.items()}

    @field_validator("body")
    @classmethod
    def _check_body(cls, body: JsonValue) -> JsonValue:
        list(placeholders_of(body))
        return body

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.preset is not None:
            for key in _PRESET_KEYS:
                if key in self.model_fields_set:
                    raise ValueError(f"{key}: the preset {self.preset} decides it; leave it out")
            if self.placeholders:
                raise ValueError(f"url: the preset {self.preset} has no placeholders")
            return self
        if self.method == "GET" and self.body is not None:
            raise ValueError("body: a GET has none; put the values into the URL")
        if self.placeholders.isdisjoint({"prompt", "messages"}):
            raise ValueError('body: nothing asks the question; write {prompt: "{{ prompt }}"}, or {{ messages }}')
        if ("session" in self.placeholders) != (self.session is not None):
            missing = "its pointer is missing" if self.session is None else "neither url nor body has {{ session }}"
            raise ValueError(f"session: {missing}")
        self._check_answer()
        return self

    def _check_answer(self) -> None:
        if self.stream is not None and (self.stream.text is None) == (self.answer is None):
            raise ValueError("stream: give stream.text, where the pieces of the answer are, or answer")
        if self.stream is None and self.answer is None:
            for key in ("usage", "steps", "session"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key}: it needs an answer in JSON; say with answer where its text is")
