"""Answers in OpenAI's words: whole, or chunk by chunk; and what went wrong."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from instrumented_runtime.server.jobs import Chunk, Failed, Job

_NUMBERS = count(1)

DONE = "data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Form:
    """What is the same in all parts of one answer.

    Attributes:
        is_chat: Which of the two APIs.
        head: Id, model and time.
        clock: What the times of `tracekit` are of.
        includes_usage: Whether a stream ends with its usage.
    """

    is_chat: bool
    head: dict[str, Any]
    clock: Literal["virtual", "wall"]
    includes_usage: bool

    @classmethod
    def of(
        cls, model: str, clock: Literal["virtual", "wall"], *, is_chat: bool, includes_usage: bool
    ) -> "Form":
        """Begin an answer."""
        number = next(_NUMBERS)
        head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{number}",
            "created": int(time.time()),
            "model": model,
        }
        return cls(is_chat, head, clock, includes_usage)

    def whole(self, job: Job, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Return an answer that is not streamed."""
        text = "".join(chunk.text for chunk in chunks)
        last = chunks[-1]
        token_ns = tuple(one for chunk in chunks for one in chunk.token_ns)
        choice: dict[str, Any] = {"index": 0, "logprobs": None}
        if self.is_chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        choice["finish_reason"] = last.end.finish_reason if last.end else None
        return {
            **self.head,
            "object": "chat.completion" if self.is_chat else "text_completion",
            "choices": [choice],
            "usage": usage(job, last),
            "tracekit": self._times(job, Chunk("", token_ns, last.end)),
        }

    def part(self, job: Job, chunk: Chunk, *, is_first: bool) -> str:
        """Return the event of one chunk of a stream; the first of a chat says who speaks."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None}
        if self.is_chat:
            delta = {"role": "assistant"} if is_first else {}
            choice["delta"] = {**delta, "content": chunk.text}
        else:
            choice["text"] = chunk.text
        choice["finish_reason"] = chunk.end.finish_reason if chunk.end else None
        return self._event([choice], {"tracekit": self._times(job, chunk)})

    def usage_part(self, job: Job, last: Chunk) -> str:
        """Return the event that says the usage of a stream."""
        return self._event([], {"usage": usage(job, last)})

    def _event(self, choices: Sequence[dict[str, Any]], more: dict[str, Any]) -> str:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        without = {"usage": None} if self.includes_usage else {}
        return _data({**self.head, "object": kind, "choices": choices, **without, **more})

    def _times(self, job: Job, chunk: Chunk) -> dict[str, Any]:
        times: dict[str, Any] = {
            "clock": self.clock,
            "arrival_ns": job.request.arrival_ns,
            "token_ns": chunk.token_ns,
        }
        if chunk.end is not None:
            times["num_verifies"] = chunk.end.num_verifies
            times["cached_tokens"] = chunk.end.cached_tokens
        return times


def usage(job: Job, last: Chunk) -> dict[str, Any]:
    """Return what an answer took."""
    prompt = len(job.request.prompt)
    new, cached = (last.end.num_tokens, last.end.cached_tokens) if last.end else (0, 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def error_json(status: int, message: str, *, code: str | None = None) -> dict[str, Any]:
    """Return an error as OpenAI's clients read it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def failed_part(failed: Failed) -> str:
    """Return the event that ends a stream without an answer."""
    return _data(error_json(failed.status, failed.message))


def _data(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"
