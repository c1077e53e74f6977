"""Serves a stream of requests with plans of prefills, and says how plans and prefills met."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import NamedTuple, cast

import numpy as np

from instrumented_runtime.bench.request_stream import RequestStream
from instrumented_runtime.config import EngineConfig, PlanWriterName
from instrumented_runtime.costs import Costs
from instrumented_runtime.devices import Buffer, MemoryFault, Stream
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.devices.virtual.streams import VirtualEvent
from instrumented_runtime.engine import Engine
from instrumented_runtime.marks import Marks
from instrumented_runtime.planned_prefill import PlanUpdate
from instrumented_runtime.prefill.planner import Lengths
from instrumented_runtime.prefill.staging import PlanBuffers, PlanWriter
from instrumented_runtime.recorder import Recorder
from instrumented_runtime.request import Request

# Assumed: what a step computes of prompts at most, and tokens drafted at a time.
CHUNK_TOKENS = 16_384
DRAFTED_TOKENS = 1
# Fitted: of 80 plans written under a prefill, copies of 55 returned after it on ROCm 7.2.
NULL_FOLLOWS_SHARE = 55 / 80
# Fitted: 1083.0 tok/s with plans of `direct`. All kernels of the model take so much longer than in
# `Costs`, whose model and number of GPUs are others.
KERNEL_SCALE = 2.4045
SERVING_COSTS = replace(
    Costs(),
    device_scale=Costs().device_scale * KERNEL_SCALE,
    prefill_token_ns=Costs().prefill_token_ns * KERNEL_SCALE,
)
# Buffers that a plan is in.
NUM_COPIES = len(PlanBuffers._fields)


@dataclass(frozen=True, slots=True)
class Served:
    """What became of a stream.

    Attributes:
        prompts: Asked.
        finished: Served to their ends.
        fault: What ended it before, if anything.
        tokens_per_s: New tokens by the virtual clock, while it ran.
        plans: Written.
        under_way: Of these, written while the prefill before was queued or running.
        late: Of those, written by copies that returned only after that prefill had ended: ordered
            by accident. The others are not ordered, if they are written by blocking copies.
        copied_ms: The longest that all copies of one of the others took; None if there is none.
    """

    prompts: int
    finished: int
    fault: MemoryFault | None
    tokens_per_s: float
    plans: int
    under_way: int
    late: int
    copied_ms: float | None

    @property
    def under_way_share(self) -> float:
        """Of plans, those written under a prefill; 0 without plans."""
        return self.under_way / self.plans if self.plans else 0.0


class _TimedDevice(VirtualDevice):
    """Notes when blocking copies begin and return."""

    def __init__(self, config: Config, recorder: Recorder | None) -> None:
        super().__init__(config, recorder)
        self.copied: list[tuple[int, int]] = []

    # Python 3.11 has no `typing.override`.
    def copy(  # type: ignore[explicit-override]
        self, destination: Buffer, source: Buffer, *, size_bytes: int | None = None
    ) -> None:
        began_ns = self.now_ns
        super().copy(destination, source, size_bytes=size_bytes)
        self.copied.append((began_ns, self.now_ns))


class _AfterDeviceSync:
    """Waits for the whole device before each plan."""

    def __init__(self, writer: PlanWriter, device: VirtualDevice) -> None:
        self._writer, self._device = writer, device

    @property
    def buffers(self) -> PlanBuffers:
        return self._writer.buffers

    @property
    def work_metadata(self) -> Buffer:
        return self._writer.work_metadata

    def write(self, query_lengths: Lengths, kv_lengths: Lengths, stream: Stream) -> int:
        self._device.synchronize()
        return self._writer.write(query_lengths, kv_lengths, stream)


@dataclass(frozen=True, slots=True)
class Arm:
    """How a stream is served.

    Attributes:
        writer: Of plans; None: attention that needs none.
        rocm: Behaviour of the null stream.
        environment: HIP's variables that the device knows.
        is_async: Whether a step is planned and launched before the one before is taken in.
        syncs_device: Whether the host waits for the device before it plans.
        has_tensors: Whether kernels touch the scratch. If not, nothing faults.
    """

    writer: PlanWriterName | None = "direct"
    rocm: str = "7.2"
    environment: Mapping[str, str] = field(default_factory=dict)
    is_async: bool = True
    syncs_device: bool = False
    has_tensors: bool = True


# Each hides the fault of `direct`.
MASKS = {
    "no planned attention": Arm(writer=None),
    "device sync before planning": Arm(syncs_device=True),
    "no async scheduling": Arm(is_async=False),
    "AMD_SERIALIZE_COPY=1": Arm(environment={"AMD_SERIALIZE_COPY": "1"}),
    "GPU_MAX_HW_QUEUES=1": Arm(environment={"GPU_MAX_HW_QUEUES": "1"}),
}


def serving_config(stream: RequestStream, writer: PlanWriterName | None) -> EngineConfig:
    """Return the engine of a stream: scheduler and forward on one stream, one drafted token."""
    return EngineConfig(
        policy="forward-stream",
        speculative_tokens=DRAFTED_TOKENS,
        max_running=stream.concurrency,
        chunk_tokens=CHUNK_TOKENS,
        max_tokens=stream.prompt_tokens + stream.new_tokens,
        mix_decode=True,
        min_free_slots=0,
        plan_writer=writer,
        has_tensors=False,
    )


def serve(
    stream: RequestStream,
    arm: Arm,
    *,
    recorder: Recorder | None = None,
) -> Served:
    """Serve a stream of requests on a virtual device until its end or a fault.

    Args:
        stream: What is asked.
        arm: How it is served.
        recorder: Where the run is recorded, markers in it.
    """
    device = _device(stream, arm, recorder)
    engine = Engine(
        device,
        serving_config(stream, arm.writer),
        costs=SERVING_COSTS,
        marks=Marks(device) if recorder else None,
        has_overlap=arm.is_async,
    )
    plans = engine.launcher.plans
    if plans is not None:
        plans.watch()
        if arm.syncs_device:
            plans.writer = _AfterDeviceSync(plans.writer, device)
    began_ns = device.now_ns
    asked = stream.requests()
    with _one_thread() if arm.has_tensors else nullcontext():
        fault = _run(engine, asked, stream.concurrency, is_async=arm.is_async)
        if fault is None:
            device.synchronize()
    took_s = (device.now_ns - began_ns) / 1e9
    new_tokens = sum(len(one.output) for one in asked)
    updates = (plans.updates if plans else None) or []
    met = _met(updates, device.copied)
    in_time = [one.copied_ns / 1e6 for one in met if one.copied_ns and not one.is_late]
    return Served(
        prompts=stream.prompts,
        finished=sum(one.is_finished for one in asked),
        fault=fault,
        tokens_per_s=new_tokens / took_s,
        plans=len(updates),
        under_way=len(met),
        late=sum(one.is_late for one in met),
        copied_ms=max(in_time, default=None),
    )


def _device(stream: RequestStream, arm: Arm, recorder: Recorder | None) -> _TimedDevice:
    config = Config.from_environment(
        arm.environment,
        seed=stream.seed,
        tensors=arm.has_tensors,
        rocm=arm.rocm,
        null_follows_share=NULL_FOLLOWS_SHARE,
        host_costs_ns=SERVING_COSTS.host_ns,
    )
    return _TimedDevice(config, recorder)


def _run(
    engine: Engine, asked: list[Request], concurrency: int, *, is_async: bool
) -> MemoryFault | None:
    """Serve requests, so many at a time; return what ended it."""
    left = iter(asked)
    step = engine.overlapped_step if is_async else engine.step
    for request in islice(left, concurrency):
        engine.add(request)
    try:
        while engine.has_work:
            for request in islice(left, len(step())):
                engine.add(request)
    except MemoryFault as fault:
        return fault
    return None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one: tensors are tiny, and threads would only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Met(NamedTuple):
    """A plan that was written under the prefill before."""

    is_late: bool
    copied_ns: int


def _met(updates: Sequence[PlanUpdate], copied: Sequence[tuple[int, int]]) -> list[_Met]:
    """Return what was written under a prefill; copies are all in blocking ones, in order."""
    met = []
    begins = np.array([began for began, _ in copied], np.int64)
    for before, update in pairwise(updates):
        read_ns = cast(VirtualEvent, before.read).done_ns
        first = int(np.searchsorted(begins, update.began_ns))
        ours = copied[first : first + NUM_COPIES]
        if read_ns is not None and read_ns <= update.began_ns:
            continue
        is_late = bool(ours) and read_ns is not None and read_ns <= ours[-1][1]
        met.append(_Met(is_late, ours[-1][1] - ours[0][0] if ours else 0))
    return met
