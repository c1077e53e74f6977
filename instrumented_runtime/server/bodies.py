"""What clients may ask, as OpenAI's API has it; what is not said is as there."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from instrumented_runtime.model import VOCABULARY
from instrumented_runtime.server.tokenizer import said_in, tokens_of, tokens_of_chat

Count = Annotated[int, Field(strict=True, ge=1)]

# Of answers whose length nobody asks for.
COMPLETION_TOKENS = 16
CHAT_TOKENS = 256
# 31 years: times, and what is added to them, have to fit 64 bits.
LAST_NS = 10**18


class StreamOptions(BaseModel):
    """How to stream."""

    include_usage: bool = False


class Body(BaseModel):
    """What both kinds of request have; fields that mean nothing to this model are ignored."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    max_tokens: Count | None = None
    n: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    rid: str | None = None
    arrival_ns: Annotated[int, Field(strict=True, ge=0, lt=LAST_NS)] | None = None
    ignore_eos: bool | None = None

    @property
    def stop_strings(self) -> list[str]:
        """Return them.

        Raises:
            ValueError: There are too many, or an empty one.
        """
        strings = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(strings) > 4 or not all(strings):
            raise ValueError("stop: is not allowed; give up to 4 strings, none of them empty")
        return strings

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def _refuse_several(self) -> None:
        if self.n is not None and self.n != 1:
            raise ValueError(f"n: {self.n} is not allowed; give 1")


class CompletionBody(Body):
    """POST /v1/completions."""

    prompt: object = None
    echo: bool | None = None
    logprobs: int | bool | None = None
    best_of: Count | None = None

    def refuse(self) -> None:
        """Refuse what this server cannot do.

        Raises:
            ValueError: Names the field and what is allowed.
        """
        self._refuse_several()
        if self.echo or self.logprobs or (self.best_of or 1) != 1:
            raise ValueError(
                "echo, logprobs, best_of: this server has none of them; leave them out"
            )

    def prompt_tokens(self) -> tuple[int, ...]:
        """Return the tokens of text, or the tokens themselves.

        Raises:
            ValueError: There are none, or it is neither.
        """
        prompt = self.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            tokens = tokens_of(prompt)
        elif isinstance(prompt, list) and all(type(one) is int for one in prompt):
            tokens = _known(prompt)
        else:
            raise ValueError("prompt: is not allowed; give one text, or one list of tokens")
        if not tokens:
            raise ValueError("prompt: is empty; give at least one word or token")
        return tokens

    def answer_tokens(self, left: int) -> int:
        """Return how many to answer with room for so many: 16 where nothing is said, as there."""
        return self.max_tokens or min(COMPLETION_TOKENS, max(left, 1))


class Message(BaseModel):
    """One turn of a chat."""

    role: Annotated[str, Field(min_length=1)]
    content: object = None


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None

    def refuse(self) -> None:
        """Refuse what this server cannot do.

        Raises:
            ValueError: Names the field and what is allowed.
        """
        self._refuse_several()
        if self.logprobs:
            raise ValueError("logprobs: this server has none; leave it out")

    def prompt_tokens(self) -> tuple[int, ...]:
        """Return the tokens of all turns.

        Raises:
            ValueError: There are none, or they are no text.
        """
        if not self.messages:
            raise ValueError("messages: is empty; give at least one")
        return tokens_of_chat((one.role, said_in(one.content)) for one in self.messages)

    def answer_tokens(self, left: int) -> int:
        """Return how many to answer with room for so many; 256 where nothing is said."""
        asked = self.max_completion_tokens or self.max_tokens
        return asked or min(CHAT_TOKENS, max(left, 1))


class ProfileBody(BaseModel):
    """POST /start_profile."""

    output_dir: Annotated[str, Field(min_length=1)]


class ClockBody(BaseModel):
    """POST /virtual_clock."""

    hold_below: Annotated[int, Field(strict=True, ge=0)]
    expires_s: Annotated[float, Field(gt=0, le=86_400)] = 30.0


def _known(tokens: Sequence[int]) -> tuple[int, ...]:
    if not all(0 <= token < VOCABULARY for token in tokens):
        raise ValueError(f"prompt: tokens go from 0 to {VOCABULARY - 1}")
    return tuple(tokens)
