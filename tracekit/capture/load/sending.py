"""Sends one request and notes when each piece of its answer came."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

import httpx
import msgspec

from tracekit.capture.load.answers import Event, Stamps, event, event_data
from tracekit.capture.load.file import Load
from tracekit.capture.load.request_plan import Planned

_ENDPOINTS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_DETAIL_CHARACTERS = 200


@dataclass(slots=True)
class Sent:
    """What happened to one request; times in nanoseconds of the load's clock.

    Attributes:
        planned: What was to be sent.
        due_ns: When.
        sent_ns: When it was.
        chunk_ns: Times of chunks with content; of a virtual server, of the steps that made them.
        chunk_tokens: Tokens of each chunk; None where the server does not say.
        end_ns: Last chunk of any kind, or the failure.
        status: As in the requests table; `interrupted` until it is known.
        problem: Why it failed, in words that group.
        detail: What was said about it.
    """

    planned: Planned
    due_ns: int | None = None
    sent_ns: int | None = None
    chunk_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int | None] = field(default_factory=list)
    end_ns: int | None = None
    status: Literal["ok", "failed", "interrupted"] = "interrupted"
    problem: str | None = None
    detail: str | None = None
    http_status: int | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    num_verifies: int | None = None


class WallClock:
    """Nanoseconds since 1970 that never jump: the machine's clock once, then a monotonic one."""

    def __init__(self) -> None:
        self._origin_ns = time.time_ns() - time.perf_counter_ns()

    def now_ns(self) -> int:
        """Return the time."""
        return self._origin_ns + time.perf_counter_ns()


class Sender:
    """Sends requests of one load to one server.

    Attributes:
        is_virtual: Whether the server stamps arrivals and tokens on its own clock.
    """

    def __init__(
        self,
        load: Load,
        model: str,
        *,
        is_virtual: bool,
        extra: Mapping[str, object],
        redact: Callable[[str], str],
    ) -> None:
        """Take what all requests share.

        Args:
            load: What is sent.
            model: Name of the model.
            is_virtual: Whether to take the server's stamps, and to send arrivals in its time.
            extra: Further fields of the body, that this kind of server knows.
            redact: Removes secrets from what servers say.
        """
        self.is_virtual = is_virtual
        self.clock = WallClock()
        self._load = load
        self._model = model
        self._extra = extra
        self._redact = redact

    async def send(self, sent: Sent, client: httpx.AsyncClient) -> None:
        """Send one request, fill in its record; whatever the server does, it ends or is cancelled.

        Its clock starts when its first byte is written to an open connection, whatever it waited
        for before.
        """
        try:
            async with asyncio.timeout(self._load.timeout_s):
                await self._exchange(sent, client)
        except TimeoutError:
            self._failed(sent, "timeout", f"not complete within {self._load.timeout_s:g} s")
        except (httpx.HTTPError, httpx.StreamError) as error:
            self._failed(sent, type(error).__name__, str(error))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._failed(sent, "malformed answer", str(error))

    async def _exchange(self, sent: Sent, client: httpx.AsyncClient) -> None:
        request = client.build_request("POST", _ENDPOINTS[self._load.kind], json=self._body(sent))
        if not self.is_virtual:
            request.extensions["trace"] = self._written(sent)
        async with aclosing(await client.send(request, stream=True)) as response:
            sent.http_status = response.status_code
            if response.status_code != 200:
                said = (await response.aread()).decode(errors="replace")
                self._failed(sent, f"HTTP {response.status_code}", said)
                return
            is_done = False
            async for data in event_data(response.aiter_bytes()):
                if not self.is_virtual:
                    sent.end_ns = self.clock.now_ns()
                if data.strip() == b"[DONE]":
                    is_done = True
                else:
                    self._take(sent, event(data))
        if sent.status == "failed":
            return
        if is_done or sent.finish_reason is not None:
            sent.status = "ok"
        else:
            self._failed(sent, "cut off", "the stream ended before the answer did")

    def _written(self, sent: Sent) -> Callable[[str, object], Awaitable[None]]:
        """Return what httpx tells of each step of a request; one of them starts its clock."""

        async def trace(step: str, _info: object) -> None:
            if step.endswith("send_request_headers.started"):
                sent.sent_ns = self.clock.now_ns()

        return trace

    def _body(self, sent: Sent) -> dict[str, object]:
        load, planned = self._load, sent.planned
        prompt: dict[str, object] = {"prompt": planned.prompt}
        if load.kind == "chat":
            prompt = {"messages": [{"role": "user", "content": planned.prompt}]}
        body = {
            "model": self._model,
            **prompt,
            "max_tokens": planned.output_tokens,
            "temperature": load.temperature,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **self._extra,
        }
        if load.ignore_eos:
            body["ignore_eos"] = True
        if self.is_virtual:
            body["rid"] = planned.rid
            if sent.due_ns is not None:
                body["arrival_ns"] = sent.due_ns
        return body

    def _take(self, sent: Sent, event: Event) -> None:
        """Take one event of the stream into the record."""
        if event.error:
            self._failed(sent, "error in the stream", msgspec.json.encode(event.error).decode())
            return
        sent.finish_reason = event.finish_reason or sent.finish_reason
        before = sent.output_tokens or 0
        told = None if event.usage is None else event.usage.completion_tokens
        if event.usage is not None:
            sent.output_tokens = _latest(told, sent.output_tokens)
            sent.prompt_tokens = _latest(event.usage.prompt_tokens, sent.prompt_tokens)
        sent.cached_tokens = _latest(event.cached_tokens, sent.cached_tokens)
        sent.num_verifies = _latest(event.num_verifies, sent.num_verifies)
        stamps = event.tracekit or Stamps()
        sent.num_verifies = _latest(stamps.num_verifies, sent.num_verifies)
        sent.cached_tokens = _latest(stamps.cached_tokens, sent.cached_tokens)
        if self.is_virtual:
            _take_stamps(sent, stamps)
        elif event.has_content and sent.end_ns is not None:
            sent.chunk_ns.append(sent.end_ns)
            counted = None if told is None else told - before
            sent.chunk_tokens.append(len(stamps.token_ns) or counted)

    def _failed(self, sent: Sent, problem: str, detail: str) -> None:
        sent.status = "failed"
        sent.problem = problem
        sent.detail = self._redact(detail)[:_DETAIL_CHARACTERS]
        if not self.is_virtual:
            sent.end_ns = self.clock.now_ns()


def _latest(told: int | None, known: int | None) -> int | None:
    return known if told is None else told


def _take_stamps(sent: Sent, stamps: Stamps) -> None:
    """Take a virtual server's times: one chunk per step, however the wires joined them."""
    sent.sent_ns = _latest(stamps.arrival_ns, sent.sent_ns)
    for token_ns in stamps.token_ns:
        if sent.chunk_ns and sent.chunk_ns[-1] == token_ns:
            sent.chunk_tokens[-1] = (sent.chunk_tokens[-1] or 0) + 1
        else:
            sent.chunk_ns.append(token_ns)
            sent.chunk_tokens.append(1)
        sent.end_ns = token_ns
