"""Answers of OpenAI-compatible servers as they stream in, with what some servers add."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec

# Sums of them over all requests, and differences of times, stay within 64 bits.
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
_Time = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Speculation(msgspec.Struct):
    spec_verify_ct: _Count | None = None


class _SGLangExtension(msgspec.Struct):
    spec_tokens_details: _Speculation | None = None


class Stamps(msgspec.Struct):
    """Times and counts that a server on virtual time adds to what it sends."""

    arrival_ns: _Time | None = None
    token_ns: list[_Time] = []
    num_verifies: _Count | None = None
    cached_tokens: _Count | None = None


class Event(msgspec.Struct):
    """One event of a streamed answer; what a server leaves out is None."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
    sglext: _SGLangExtension | None = None
    tracekit: Stamps | None = None

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ends here."""
        return self.choices[0].finish_reason if self.choices else None

    @property
    def has_content(self) -> bool:
        """Whether it brings text; the first event of a chat and the last of all bring none."""
        if not self.choices:
            return False
        choice = self.choices[0]
        delta = choice.delta or _Delta()
        return bool(choice.text or delta.content or delta.reasoning_content)

    @property
    def num_verifies(self) -> int | None:
        """Verify steps of the request, as SGLang tells them at the end if it is asked to."""
        details = self.sglext.spec_tokens_details if self.sglext else None
        return details.spec_verify_ct if details else None

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that were found in the prefix cache."""
        details = self.usage.prompt_tokens_details if self.usage else None
        return details.cached_tokens if details else None


_DECODER = msgspec.json.Decoder(Event)


def event(data: bytes) -> Event:
    """Return an event from its data.

    Raises:
        msgspec.DecodeError: It is no event of an answer.
    """
    try:
        return _DECODER.decode(data)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error


async def event_data(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event.

    By bytes: httpx's own lines also end at characters that a token may hold (U+2028, U+0085).
    """
    rest = b""
    data: list[bytes] = []
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            text = line.rstrip(b"\r")
            if text.startswith(b"data:"):
                data.append(text.removeprefix(b"data:").removeprefix(b" "))
            elif not text and data:
                yield b"\n".join(data)
                data = []
    if rest.startswith(b"data:"):
        data.append(rest.removeprefix(b"data:").rstrip(b"\r"))
    if data:
        yield b"\n".join(data)
