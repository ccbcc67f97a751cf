"""What a program prints as JSON: ``{"text" or "output": …, "token_usage"?: {"input", "output"}}``."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from quintain.contracts.invoke import JsonObject, OutputMessage, TokenUsage, text_of
from quintain.contracts.message import explain
from quintain_worker.port import Answer


class _Message(BaseModel):
    # What else is said, such as the calls of tools, is the program's own business: they have been made.
    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[JsonObject]


class _Printed(BaseModel):
    model_config = ConfigDict(extra="ignore")

    text: str | None = None
    output: str | list[_Message] | None = None
    token_usage: TokenUsage | None = Field(default=None, validation_alias=AliasChoices("token_usage", "tokenUsage"))


def printed_answer(text: str) -> Answer:
    """The answer in a program's JSON; of several messages, the last assistant's is the text.

    Raises `ValueError` with a sentence that does not quote what was printed.
    """
    try:
        printed = _Printed.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(explain(error)) from None
    if isinstance(printed.output, list):
        return _of_messages(printed, printed.output)
    said = printed.text if printed.text is not None else printed.output
    if said is None:
        raise ValueError("it has neither text nor output")
    return Answer(text=said, token_usage=printed.token_usage)


def _of_messages(printed: _Printed, messages: list[_Message]) -> Answer:
    output = [OutputMessage(content=message.content) for message in messages if message.role == "assistant"]
    if not output:
        raise ValueError("output holds no message of the assistant")
    said = text_of(output[-1].content) if printed.text is None else printed.text
    return Answer(text=said, output=output, token_usage=printed.token_usage)
