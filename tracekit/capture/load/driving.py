"""Drives load at an OpenAI-compatible server and keeps what became of every request.

Against a server on the virtual device the load runs in the server's time: virtual time stands while
fewer requests are unfinished, or to come, than clients have work for, so that however slow the
wires are, the same load gives the same trace.
"""

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import httpx
import polars as pl

from tracekit.capture.load.counters import Counters, counters
from tracekit.capture.load.file import Load, read_load
from tracekit.capture.load.request_plan import Planned, planned
from tracekit.capture.load.requests import requests_frame
from tracekit.capture.load.sending import Sender, Sent
from tracekit.capture.redaction import Redactor
from tracekit.errors import TracekitError

__all__ = ["Driven", "Load", "Progress", "drive", "read_load"]

Progress = Callable[[int, int, str], object]
_POLL_S = 0.1
_FLUSH_TRIES = 50
_FLUSH_ENDPOINTS = ("/flush_cache", "/reset_prefix_cache")
_HOLD_EXPIRES_S = 30


@dataclass(slots=True)
class Driven:
    """What a load did, complete or not.

    Attributes:
        phase: Name of the phase.
        load: What was asked for.
        records: The requests table.
        num_planned: Requests that were to be sent.
        clock: Whose time the records are in.
        before: The server's counters when it began.
        after: And when it had ended; as `before` if it was stopped.
        cache_flush: How the prefix cache was flushed, or why it was not.
        stopped: Why it ended early; None if it did not.
    """

    phase: str
    load: Load
    records: pl.DataFrame
    num_planned: int = 0
    clock: Literal["wall", "virtual"] = "wall"
    before: Counters = field(default_factory=Counters)
    after: Counters = field(default_factory=Counters)
    cache_flush: str = "not asked for"
    stopped: str | None = None


def drive(
    load: Load,
    base_url: str,
    *,
    phase: str,
    progress: Progress = lambda _done, _total, _what: None,
    should_stop: Callable[[], str | None] = lambda: None,
) -> Driven:
    """Send a load and return when every request has ended.

    Ctrl-C does not raise: the load ends at once, connections are closed, and what had been sent is
    returned with `stopped`.

    Args:
        load: What to send.
        base_url: Where the server answers.
        phase: `warm_up`, or the name of a measured phase.
        progress: Told how many requests have ended.
        should_stop: Asked several times a second; a reason ends the load like Ctrl-C.

    Raises:
        TracekitError: The server names no model and the load names none either.
        BadInput: The load's prompts cannot all differ.
    """
    driving = _Driving(load, base_url, phase, progress, should_stop)
    try:
        asyncio.run(driving.run())
    except KeyboardInterrupt:
        driving.driven.stopped = "interrupted"
    driving.driven.records = requests_frame(phase, driving.sent)
    return driving.driven


class _Driving:
    """One run of a load; its records outlive the loop that fills them."""

    def __init__(
        self,
        load: Load,
        base_url: str,
        phase: str,
        progress: Progress,
        should_stop: Callable[[], str | None],
    ) -> None:
        self.driven = Driven(phase, load, requests_frame(phase, []))
        self.sent: list[Sent] = []
        self._load = load
        self._base_url = base_url
        self._progress = progress
        self._should_stop = should_stop
        # A server's error may quote what it was started with; our command line holds it too.
        self._redact = Redactor(sys.argv, os.environ, load.headers).text
        self._num_ended = 0
        self._num_busy = 0
        self._posting = asyncio.Lock()
        self._lines: list[httpx.AsyncClient] = []

    async def run(self) -> None:
        """Run the load, asking meanwhile whether to stop."""
        work = asyncio.create_task(self._work())
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=_POLL_S)
                reason = None if work.done() else self._should_stop()
                if reason is not None:
                    self.driven.stopped = reason
                    break
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def _work(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            # Made once: it reads every certificate there is.
            tls = httpx.create_ssl_context() if self._base_url.startswith("https") else False

            async def connect() -> httpx.AsyncClient:
                # Without the environment: a proxy has no place between a load and its server.
                return await stack.enter_async_context(
                    httpx.AsyncClient(
                        base_url=self._base_url,
                        headers=self._load.headers,
                        timeout=None,
                        trust_env=False,
                        verify=tls,
                    )
                )

            self._connect = connect
            await self._phase(await connect())

    async def _phase(self, client: httpx.AsyncClient) -> None:
        driven, load = self.driven, self._load
        driven.before = driven.after = await counters(client)
        is_virtual = driven.before.is_virtual
        driven.clock = "virtual" if is_virtual else "wall"
        extra: dict[str, object] = (
            {"return_spec_tokens_details": True} if driven.before.kind == "sglang" else {}
        )
        model = load.model or await self._first_model(client)
        can_flush = await self._flush(client)
        # Where the cache stays warm, the prompts of the phase before must not come again.
        bursts = planned(load, driven.phase, "" if can_flush else driven.phase)
        driven.num_planned = sum(map(len, bursts))
        sender = Sender(load, model, is_virtual=is_virtual, extra=extra, redact=self._redact)
        for number, burst in enumerate(bursts):
            if number and can_flush:
                await self._flush(client)
            await self._burst(client, sender, burst)
            if driven.stopped is not None:
                return
        driven.after = await counters(client)

    async def _burst(self, client: httpx.AsyncClient, sender: Sender, burst: list[Planned]) -> None:
        todo = deque(burst)
        num_clients = min(self._load.concurrency or len(burst), len(burst))
        # Each client has its own connection: the time that httpx takes to choose one of many grows
        # with the square of their number and would be in every latency.
        while len(self._lines) < num_clients:
            self._lines.append(await self._connect())
        self._num_busy = num_clients
        try:
            start_ns = await self._start(client, sender)
            if self.driven.stopped is not None:
                return
            async with asyncio.TaskGroup() as group:
                for line in self._lines[:num_clients]:
                    group.create_task(self._client(line, sender, todo, start_ns))
        finally:
            if sender.is_virtual and self._num_busy:
                self._num_busy = 0
                await self._hold(client, timeout_s=2)

    async def _start(self, client: httpx.AsyncClient, sender: Sender) -> int:
        """Return when the burst starts; a virtual server's time stands from then on."""
        if not sender.is_virtual:
            return sender.clock.now_ns()
        await self._hold(client)
        told = await counters(client)
        if not told.is_virtual:
            self._gone("no /server_info")
        return int(told.info.get("now_ns", 0))

    async def _client(
        self, client: httpx.AsyncClient, sender: Sender, todo: deque[Planned], start_ns: int
    ) -> None:
        """Send one request after the other until there are no more."""
        is_open = self._load.rate_per_s is not None and self.driven.phase != "warm_up"
        while todo:
            sent = Sent(todo.popleft())
            if is_open:
                sent.due_ns = start_ns + sent.planned.due_after_ns
            if not sender.is_virtual:
                if sent.due_ns is not None:
                    await asyncio.sleep(max(0, sent.due_ns - sender.clock.now_ns()) / 1e9)
                else:
                    sent.due_ns = sender.clock.now_ns()
            self.sent.append(sent)
            await sender.send(sent, client)
            self._num_ended += 1
            what = f"{self.driven.phase}: requests"
            self._progress(self._num_ended, self.driven.num_planned, what)
        self._num_busy -= 1
        if sender.is_virtual:
            await self._hold(client)

    async def _hold(self, client: httpx.AsyncClient, timeout_s: float = 30) -> None:
        """Let virtual time stand until every busy client has a request at the server."""
        async with self._posting:
            asked = {"hold_below": self._num_busy, "expires_s": _HOLD_EXPIRES_S}
            try:
                answer = await client.post("/virtual_clock", json=asked, timeout=timeout_s)
                answer.raise_for_status()
            except httpx.HTTPError as error:
                self._gone(type(error).__name__)

    def _gone(self, problem: str) -> None:
        self.driven.stopped = self.driven.stopped or f"the server holds its time no more: {problem}"

    async def _flush(self, client: httpx.AsyncClient) -> bool:
        """Flush the prefix cache where the server can; say how, or why not."""
        if not self._load.flush_cache:
            return False
        for endpoint in _FLUSH_ENDPOINTS:
            status = await self._flushed(client, endpoint)
            if status == 200:
                self.driven.cache_flush = endpoint
                return True
            if status not in {404, 405}:
                self.driven.cache_flush = f"failed: {endpoint} answers {status}"
                return False
        self.driven.cache_flush = "the server has no endpoint for it; prompts differ by phase"
        return False

    async def _flushed(self, client: httpx.AsyncClient, endpoint: str) -> int | str:
        """Return the answer; while requests are still being put away a server refuses."""
        status: int | str = "nothing"
        for _ in range(_FLUSH_TRIES):
            try:
                status = (await client.post(endpoint, timeout=30)).status_code
            except httpx.HTTPError as error:
                return type(error).__name__
            if status in {200, 404, 405}:
                return status
            await asyncio.sleep(_POLL_S)
        return status

    async def _first_model(self, client: httpx.AsyncClient) -> str:
        remedy = 'Name one in the load file: model = "…"'
        try:
            response = await client.get("/v1/models", timeout=30)
            return str(response.raise_for_status().json()["data"][0]["id"])
        except (
            httpx.HTTPError,
            ValueError,
            KeyError,
            IndexError,
            TypeError,
            RecursionError,
        ) as error:
            url = f"{self._base_url}/v1/models"
            raise TracekitError(url, "names no model", remedy) from error
