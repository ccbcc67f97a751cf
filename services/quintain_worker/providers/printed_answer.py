"""What a program prints as its answer, as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from quintain.contracts.agents import AgentStep
from quintain.contracts.invoke import JsonObject, OutputMessage, TokenUsage, content_text
from quintain.contracts.message import describe_validation_error
from quintain_worker.providers.provider import ProviderAnswer


class _PrintedMessage(BaseModel):
    # Other fields, such as tool calls that the program has already made, are ignored.
    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[JsonObject]


class PrintedAnswer(BaseModel):
    """The answer of a program, as JSON."""

    model_config = ConfigDict(extra="ignore")

    text: str | None = None
    output: str | list[_PrintedMessage] | None = None
    token_usage: TokenUsage | None = Field(
        default=None, validation_alias=AliasChoices("token_usage", "tokenUsage", "usage")
    )
    steps: tuple[AgentStep, ...] = ()

    def to_answer(self) -> ProviderAnswer:
        """Return the answer; of several messages, the last of the assistant is the text. Raises `ValueError`."""
        if isinstance(self.output, list):
            return _answer_from_messages(self, self.output)
        answer_text = self.text if self.text is not None else self.output
        if answer_text is None:
            raise ValueError("it has neither text nor output")
        return ProviderAnswer(text=answer_text, token_usage=self.token_usage, steps=self.steps)


def parse_output(text: str) -> ProviderAnswer:
    """Parse a program's JSON into an answer; of several messages, the last of the assistant is the text.

    Raises `ValueError` with a message that does not quote the output.
    """
    try:
        printed = PrintedAnswer.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(describe_validation_error(error)) from None
    return printed.to_answer()


def _answer_from_messages(printed: PrintedAnswer, messages: list[_PrintedMessage]) -> ProviderAnswer:
    output = [OutputMessage(content=message.content) for message in messages if message.role == "assistant"]
    if not output:
        raise ValueError("output holds no message of the assistant")
    answer_text = content_text(output[-1].content) if printed.text is None else printed.text
    return ProviderAnswer(text=answer_text, output=output, token_usage=printed.token_usage, steps=printed.steps)
