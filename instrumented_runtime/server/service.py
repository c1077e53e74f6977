"""What the routes share: the engine's thread, what it was told, and whether the server ends."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeVar

from instrumented_runtime.devices.virtual import VirtualDevice
from instrumented_runtime.server.engine_thread import Delivery, EngineThread, Machine
from instrumented_runtime.server.jobs import Failed, Job
from instrumented_runtime.server.options import Options
from instrumented_runtime.server.profiling import Finish

_T = TypeVar("_T")

ENDING = Failed(503, "the server is stopping; ask another, or later")


@dataclass(slots=True)
class Service:
    """One running server.

    Attributes:
        options: What it was told.
        thread: Owns the engine.
        max_tokens: Of the longest request that can be served, prompt and answer.
        is_stopping: Whether new requests are refused.
        open_answers: Jobs whose clients wait for an answer or more of it.
    """

    options: Options
    thread: EngineThread
    max_tokens: int
    is_stopping: bool = False
    open_answers: set[Job] = field(default_factory=set)
    _finishing: set["asyncio.Task[list[Path]]"] = field(default_factory=set)

    @classmethod
    async def started(
        cls,
        options: Options,
        build: Callable[[], Machine],
        on_failure: Callable[[], None],
    ) -> "Service":
        """Start the thread and wait until the engine is there.

        Raises:
            Exception: What kept it from that.
        """
        loop = asyncio.get_running_loop()

        def deliver(delivery: Delivery) -> None:
            _soon(loop, lambda: _hand_out(delivery))

        thread = EngineThread(build, deliver, lambda: _soon(loop, on_failure))
        await asyncio.wrap_future(thread.ready)
        config = options.engine
        in_pool = (config.pages - 1) * config.page_size - config.reserve_tokens
        return cls(options, thread, min(config.max_tokens, in_pool))

    @property
    def is_virtual(self) -> bool:
        """Whether times are virtual."""
        return isinstance(self.thread.machine.device, VirtualDevice)

    @property
    def clock(self) -> Literal["virtual", "wall"]:
        """What clock the times are of."""
        return "virtual" if self.is_virtual else "wall"

    @property
    def trouble(self) -> Failed | None:
        """Why nothing is served, if so."""
        if self.thread.failure is not None:
            failure = self.thread.failure
            return Failed(503, f"a step failed ({type(failure).__name__}: {failure})")
        return ENDING if self.is_stopping else None

    def submit(self, job: Job) -> None:
        """Begin an answer; `close` ends it, whatever comes of it."""
        self.open_answers.add(job)
        self.thread.submit(job)

    def close(self, job: Job) -> None:
        """End an answer: nobody waits for it any more."""
        self.open_answers.discard(job)
        self.thread.abort(job)

    async def call(self, function: Callable[[Machine], _T]) -> _T:
        """Call a function on the engine's thread."""
        return await _result(self.thread.call(function))

    async def finish(self, finish: Finish) -> list[Path]:
        """Complete the files of a window, beside all else; the server ends only after it."""
        task = asyncio.create_task(asyncio.to_thread(finish))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return await asyncio.shield(task)

    async def finished(self) -> None:
        """Wait until all files of windows are complete, or have failed, as was said then."""
        await asyncio.gather(*self._finishing, return_exceptions=True)

    def info(self) -> dict[str, Any]:
        """Return what `/server_info` says; a model says that it is one."""
        machine, thread, options = self.thread.machine, self.thread, self.options
        engine = machine.engine
        verifies, tokens = engine.num_verifies, engine.num_verified_tokens
        waiting = engine.num_waiting
        info: dict[str, Any] = {
            "model": options.model,
            "device": "virtual" if self.is_virtual else machine.device.name,
            "is_model": self.is_virtual,
            "clock": self.clock,
            "now_ns": machine.device.now_ns,
            "max_running": options.engine.max_running,
            "max_tokens": self.max_tokens,
            "policy": engine.policy.name,
            "num_verifies": verifies,
            "num_verified_tokens": tokens,
            "num_running": max(thread.num_unfinished - waiting, 0),
            "num_waiting": waiting,
            "num_to_come": thread.num_to_come,
            "is_profiling": machine.windows.is_open,
            "internal_states": [
                {"avg_spec_accept_length": tokens / verifies if verifies else None}
            ],
            "engine": options.engine_fields,
            "version": _version(),
        }
        if self.is_virtual:
            noise = options.noise
            info["pace"] = options.pace
            info["start_noise"] = {
                "variation": noise.variation,
                "seed": noise.seed,
                "device_factor": noise.device_factor,
                "host_factor": noise.host_factor,
            }
        return info


def _result(future: "Future[_T]") -> Awaitable[_T]:
    return asyncio.wrap_future(future)


def _hand_out(delivery: Delivery) -> None:
    for job, event in delivery:
        job.deliver(event)


def _soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    # The loop may be gone when the process ends.
    if not loop.is_closed():
        loop.call_soon_threadsafe(function)


def _version() -> str:
    try:
        return version("tracekit-rocm")
    except PackageNotFoundError:
        return "unknown"
