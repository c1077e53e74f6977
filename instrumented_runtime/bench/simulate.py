"""The runs behind the tables: decode cycles at one batch size, and a burst of prompts."""

import random
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from instrumented_runtime.bench.published import GRAPH_KERNELS
from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import Costs
from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.engine import Engine
from instrumented_runtime.marks import Marks
from instrumented_runtime.model import VOCABULARY
from instrumented_runtime.recorder import Recorder
from instrumented_runtime.request import Request

WARM_UP_CYCLES = 5
CYCLES = 60
BURST_REQUESTS, BURST_PROMPT, BURST_NEW = 256, 4096, 3072


@dataclass(frozen=True, slots=True)
class Cycles:
    """Decode cycles while every request decodes.

    Attributes:
        cycle_ms: Mean time of one.
        verifies: Of single requests, in all cycles.
        tokens: That they yielded, bonus tokens included.
    """

    cycle_ms: float
    verifies: int
    tokens: int


def decode_cycles(
    config: EngineConfig,
    *,
    costs: Costs | None = None,
    device: Mapping[str, object] | None = None,
    has_overlap: bool = True,
    recorder: Recorder | None = None,
    cycles: int = CYCLES,
) -> Cycles:
    """Run `config.max_running` requests at once on a virtual device, and time their decode cycles.

    Args:
        config: The batch size is its `max_running`.
        costs: Of kernels and host.
        device: Options of the virtual device, for instance `ordering_edges`.
        has_overlap: Whether a step is launched before the one before is taken in.
        recorder: Where the run is recorded.
        cycles: How many are timed.
    """
    costs = costs or Costs()
    options = {"tensors": config.has_tensors, "host_costs_ns": costs.host_ns, **(device or {})}
    virtual = VirtualDevice(Config.from_options(options), recorder)
    marks = Marks(virtual) if recorder else None
    engine = Engine(virtual, config, costs=costs, marks=marks, has_overlap=has_overlap)
    size = config.max_running
    for number in range(size):
        # Long enough to be decoding in every cycle that is timed.
        engine.add(Request(number, _prompt(number, 64), (cycles + 20) * 6))
    step = engine.overlapped_step if has_overlap else engine.step
    while engine.num_running < size:
        step()
    for _ in range(WARM_UP_CYCLES):
        step()
    began_ns, verifies, tokens = (
        virtual.now_ns,
        engine.num_verifies,
        engine.num_verified_tokens,
    )
    for _ in range(cycles):
        step()
    return Cycles(
        (virtual.now_ns - began_ns) / cycles / 1e6,
        engine.num_verifies - verifies,
        engine.num_verified_tokens - tokens,
    )


@dataclass(frozen=True, slots=True)
class BurstResult:
    """What clients of a burst see, by the virtual clock, and where it settles.

    Attributes:
        settled: Running and waiting requests when no more prefill is admitted.
        acceptance: Tokens per verify.
    """

    tokens_per_s: float
    ttft_max_s: float
    ttft_median_s: float
    tpot_median_ms: float
    settled: tuple[int, int]
    acceptance: float


def burst(
    config: EngineConfig, *, costs: Costs, requests: int = BURST_REQUESTS, new: int = BURST_NEW
) -> BurstResult:
    """Serve distinct prompts of 4096 tokens that all arrive at once."""
    virtual = VirtualDevice(Config(tensors=False, host_costs_ns=costs.host_ns))
    engine = Engine(virtual, config, costs=costs)
    began_ns = virtual.now_ns
    served = [
        Request(number, _prompt(number, BURST_PROMPT), new, arrival_ns=began_ns)
        for number in range(requests)
    ]
    for request in served:
        engine.add(request)
    settled = serve_burst(engine)
    first = [_since_arrival_s(one, one.first_token_ns) for one in served]
    last = [_since_arrival_s(one, one.finished_ns) for one in served]
    per_token = [(end - start) / (new - 1) * 1e3 for start, end in zip(first, last, strict=True)]
    return BurstResult(
        requests * new / max(last),
        max(first),
        statistics.median(first),
        statistics.median(per_token),
        settled,
        engine.num_verified_tokens / engine.num_verifies,
    )


def serve_burst(engine: Engine) -> tuple[int, int]:
    """Serve all that was added; return how many run and wait when no more are admitted."""
    settled, finished = (0, 0), 0
    while engine.has_work:
        finished += len(engine.overlapped_step())
        if not finished:
            settled = (engine.num_running, engine.num_waiting)
    return settled


def graph_us(*, is_waited_for: bool) -> float:
    """Return how long a graph of 512 kernels takes, perhaps with another queue waiting for it."""
    device = VirtualDevice(Config(tensors=False))
    forward, other, event = device.stream(), device.stream(), device.event()
    kernel = Kernel("kernel", 1_200)
    with device.capture(forward) as graph:
        for _ in range(GRAPH_KERNELS):
            device.launch(kernel, forward)
    graph.replay(forward)
    event.record(forward)
    if is_waited_for:
        event.wait(other)
    device.synchronize()
    return device.tally.span_ns / 1e3


def _since_arrival_s(request: Request, at_ns: int | None) -> float:
    assert at_ns is not None, "all requests are served to their ends"
    return (at_ns - request.arrival_ns) / 1e9


def _prompt(number: int, length: int) -> tuple[int, ...]:
    return tuple(random.Random(number).choices(range(VOCABULARY), k=length))
