"""The engine: schedules a step, launches it, and takes in what it said.

`step` does one after the other and is the truth for `overlapped_step`, which launches a step before
it takes in the one before. Both give every request the same tokens.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import Costs
from instrumented_runtime.devices import Device
from instrumented_runtime.launcher import Launched, Launcher
from instrumented_runtime.marks import Marks
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.model import VOCABULARY
from instrumented_runtime.outcomes import Outcomes
from instrumented_runtime.pages import PagePool, PrefixCache
from instrumented_runtime.request import Request
from instrumented_runtime.scheduling.min_free_slots_delayer import (
    MinFreeSlotsDelayer,
    resolve_min_free_slots,
)
from instrumented_runtime.scheduling.scheduler import Batch, Scheduler
from instrumented_runtime.scheduling.stream_policy import stream_policy

if TYPE_CHECKING:
    from torch import Tensor


class Engine:
    """Serves requests on one device.

    Attributes:
        config: What it was told.
        policy: How the scheduler waits, `auto` decided.
        num_verifies: Verifies of single requests so far, and
        num_verified_tokens: what they yielded, the bonus tokens included.
        launcher: Puts steps onto the device.
    """

    def __init__(
        self,
        device: Device,
        config: EngineConfig,
        *,
        costs: Costs | None = None,
        marks: Marks | None = None,
        has_overlap: bool = True,
    ) -> None:
        """Allocate everything and capture the graphs of every batch size.

        Args:
            device: What to run on.
            config: How.
            costs: Of kernels, on a virtual device.
            marks: Where markers go; nowhere if None.
            has_overlap: Whether `overlapped_step` will be used; decides what `auto` means.

        Raises:
            ValueError: The device is not one for this engine; says what to give it.
        """
        _refuse_device(device, config)
        self.config = config
        self._device = MarkedDevice(device, marks or Marks())
        self.policy = stream_policy(
            config.policy,
            platform=device.platform,
            has_overlap=has_overlap,
            is_speculative=config.is_speculative,
            pipeline_parallel_size=config.pipeline_parallel_size,
        )
        self._scheduler = _scheduler(config)
        self._outcomes = Outcomes(config)
        self.launcher = Launcher(self._device, config, costs or Costs(), self.policy)
        self._device.synchronize()
        self._in_flight: Launched | None = None
        self._failure: BaseException | None = None
        self._num_steps = self._num_new_tokens = 0
        self.num_verifies = self.num_verified_tokens = 0

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: It is longer than a request may be, has a token that the model does not
                know, or was given to an engine before.
            RuntimeError: A step failed before.
        """
        self._refuse(request)
        self._scheduler.add(request)
        request.is_added = True

    def _refuse(self, request: Request) -> None:
        self._refuse_after_failure()
        label = f"request {request.request_id}"
        length = len(request.prompt) + request.max_new_tokens
        if length > self.config.max_tokens:
            raise ValueError(
                f"{label}: {len(request.prompt)} prompt and {request.max_new_tokens} new tokens "
                f"are more than max_tokens, {self.config.max_tokens}; ask for fewer"
            )
        if not all(0 <= token < VOCABULARY for token in request.prompt):
            raise ValueError(f"{label}: a prompt's tokens go from 0 to {VOCABULARY - 1}")
        if request.is_added:
            raise ValueError(f"{label}: was added before; make a new one")

    def abort(self, request: Request) -> None:
        """End a request now; what a step under way yields for it is dropped.

        Raises:
            ValueError: It is not served here, or no longer.
        """
        self._scheduler.finish(request)
        request.finish_reason = "abort"
        request.finished_ns = self._device.device.now_ns

    def step(self) -> list[Request]:
        """Schedule, launch and take in one step; return the requests that finished.

        A step that `overlapped_step` left under way is taken in first.
        """
        with self._whole():
            before, self._in_flight = self._in_flight, None
            finished = self._process(before) if before else []
            batch = self._next_batch()
            if batch is None:
                return finished
            with self._marked_step(batch):
                return finished + self._process(self._launch(batch))

    def overlapped_step(self) -> list[Request]:
        """Launch one step and take in the one before; return the requests that that finished."""
        with self._whole():
            batch = self._next_batch()
            before = self._in_flight
            if batch is None and before is None:
                return []
            with self._marked_step(batch):
                self._in_flight = self._launch(batch) if batch else None
                return self._process(before) if before else []

    def run(self, requests: Iterable[Request], *, overlapped: bool = True) -> list[Request]:
        """Serve requests to their ends; return them in the order in which they finished.

        Raises:
            ValueError: As `add`; then none of them is queued.
        """
        requests = list(requests)
        for request in requests:
            self._refuse(request)
        for request in requests:
            self.add(request)
        finished: list[Request] = []
        step = self.overlapped_step if overlapped else self.step
        while self.has_work:
            finished += step()
        return finished

    @property
    def has_work(self) -> bool:
        """Whether anything is waiting, running or not yet taken in."""
        scheduler = self._scheduler
        is_used = scheduler.num_allocatable < self.config.max_running
        return bool(scheduler.waiting or is_used or self._in_flight)

    @property
    def num_running(self) -> int:
        """Requests that decode."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._scheduler.waiting)

    def flush_cache(self) -> None:
        """Forget all cached prefixes that no request uses."""
        cache = self._scheduler.cache
        if cache is not None:
            cache.flush()

    def _launch(self, batch: Batch) -> Launched:
        misses = [self._outcomes.misses(request) for request in batch.admitted]
        return self.launcher.launch(batch, self._num_steps, misses)

    def _next_batch(self) -> Batch | None:
        with self._device.range("Scheduler.next_batch"):
            self._device.elapse("schedule")
            return self._scheduler.next_batch()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Let nothing go on after a step that was left half done: its tokens would be wrong."""
        self._refuse_after_failure()
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            what = f"{type(self._failure).__name__}: {self._failure}".removesuffix(": ")
            raise RuntimeError(f"a step failed ({what}); make a new engine") from self._failure

    @contextmanager
    def _marked_step(self, batch: Batch | None) -> Iterator[None]:
        """Mark a step; its tokens are those handed out since the one before began.

        Who waits for a slot, and the slots, are counted when the batch is made: nobody whom it
        admits waits.
        """
        if batch is None:
            with self._device.range("drain"):
                yield
            return
        kind: str = batch.kind
        if kind == "decode" and self.config.is_speculative:
            kind = "verify"
        size = len(batch.chunks) + len(batch.decode)
        tokens, self._num_new_tokens = self._num_new_tokens, 0
        with self._device.marks.step(
            self._num_steps,
            kind=kind,
            batch_size=size,
            tokens=tokens,
            waiting=self.num_waiting,
            free=self._scheduler.num_allocatable,
        ):
            yield
        self._num_steps += 1

    def _process(self, launched: Launched) -> list[Request]:
        """Wait for a step and hand out what it said."""
        batch = launched.batch
        with self._device.range("process_batch_result"):
            copied = launched.inputs.result.wait()
            self._device.elapse("process")
            self._device.elapse("process_request", len(batch.chunks) + len(batch.decode))
            finished = []
            for request, tokens in self._said(batch, copied):
                before = len(request.output)
                request.take(tokens, self._device.device.now_ns)
                self._num_new_tokens += len(request.output) - before
                if request.is_finished:
                    self._scheduler.finish(request)
                    finished.append(request)
            return finished

    def _said(self, batch: Batch, copied: "Tensor | None") -> list[tuple[Request, list[int]]]:
        if batch.chunks:
            return self._outcomes.of_prefill(batch, copied)
        # A request that finished since then has had a step too many.
        places = [n for n, request in enumerate(batch.decode) if not request.is_finished]
        requests = [batch.decode[place] for place in places]
        if not requests:
            return []
        said = self._outcomes.of_decode(requests, places, copied)
        for request, tokens in zip(requests, said, strict=True):
            request.num_verifies += 1
            self.num_verifies += 1
            self.num_verified_tokens += len(tokens)
        return list(zip(requests, said, strict=True))


def _refuse_device(device: Device, config: EngineConfig) -> None:
    """Refuse a virtual device that lacks what the engine asks of it."""
    try:
        for kind in Costs().host_ns:
            device.elapse(kind, 0)
    except ValueError as error:
        cure = "give the device Config(host_costs_ns=Costs().host_ns)"
        raise ValueError(
            f"{device.name}: knows no cost of the host's work ({error}); {cure}"
        ) from error
    if not config.has_tensors:
        return
    try:
        device.host_buffer([1], "int64", name="probe").on_host()
    except ValueError as error:
        cure = "give EngineConfig(has_tensors=False)"
        raise ValueError(f"{device.name}: computes nothing ({error}); {cure}") from error


def _scheduler(config: EngineConfig) -> Scheduler:
    pool = PagePool(config.pages, config.page_size)
    threshold = resolve_min_free_slots(
        config.min_free_slots, config.max_running, is_dflash_family=config.is_speculative
    )
    return Scheduler(
        max_running=config.max_running,
        chunk_tokens=config.chunk_tokens,
        pool=pool,
        cache=PrefixCache(pool),
        delayer=MinFreeSlotsDelayer(threshold, rule=config.delay_rule),
        mix_decode=config.mix_decode,
        reserve_tokens=config.reserve_tokens,
    )
