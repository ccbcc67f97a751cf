"""What a program prints as its answer, as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from quintain.contracts.invoke import JsonObject, OutputMessage, TokenUsage, content_text
from quintain.contracts.message import describe_validation_error
from quintain_worker.providers.agent_steps import read_steps
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
    steps: list[JsonValue] = []

    def to_answer(self) -> ProviderAnswer:
        """Return the answer; of several messages, the last of the assistant is the text. Raises `ValueError`."""
        try:
            steps = read_steps(self.steps)
        except ValueError as error:
            raise ValueError(f"steps: {error}") from None
        text, output = self.text, None
        if isinstance(self.output, list):
            output = [OutputMessage(content=message.content) for message in self.output if message.role == "assistant"]
            if not output:
                raise ValueError("output holds no message of the assistant")
            text = content_text(output[-1].content) if text is None else text
        elif text is None:
            text = self.output
        if text is None:
            raise ValueError("it has neither text nor output")
        return ProviderAnswer(text=text, output=output, token_usage=self.token_usage, steps=steps)


def parse_output(text: str) -> ProviderAnswer:
    """Parse a program's JSON into an answer; of several messages, the last of the assistant is the text.

    Raises `ValueError` with a message that does not quote the output.
    """
    try:
        printed = PrintedAnswer.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(describe_validation_error(error)) from None
    return printed.to_answer()
