"""What it gains to run compressors on side streams, and what it costs without ordering edges."""

import tempfile
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from instrumented_runtime.bench import Kind, Row, Say, Table
from instrumented_runtime.bench.published import (
    ALL_REDUCE_PERCENT,
    OVERLAP,
    PROFILE_CONCURRENCY,
    PROFILE_OFF,
    PROFILE_ON,
    Overlap,
    StreamProfile,
)
from instrumented_runtime.bench.simulate import Cycles, decode_cycles
from instrumented_runtime.bench.stream_profile import Profile, all_reduce_skew, stream_profile
from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import FORWARD, TOKENS_PER_VERIFY, Costs, KernelTime, Part
from instrumented_runtime.recorder import Recorder

# The device repeats itself.
TIMED_CYCLES = 10
_COMPRESSORS: tuple[Part, ...] = ("core", "indexer")


def _layers_with(part: Part) -> int:
    # Where a layer has kernels of a part, they follow each other.
    parts = [kernel.part for kernel in FORWARD]
    return sum(here == part != before for before, here in pairwise(parts))


# SGLang forks and joins each side stream by itself, so that of 41 layers 21 have two forks.
FORKS_PER_LAYER = sum(map(_layers_with, _COMPRESSORS)) / _layers_with("core")
# The concurrencies without overlap that scaling is fitted to.
FITTED_OFF = (1, 8, 32)


@dataclass(frozen=True, slots=True)
class OverlapCosts(Costs):
    """Kernels of a decode step of one token, and how much they mind each other.

    Compressors read the same weights at any batch and take `compressor_scale` of their weight; all
    others grow as in `Costs`, with tokens for requests. What a kernel takes longer than at batch 1
    is taken to be the time in which it fills the device, and two that need all of it get half each:
    beside another one, a kernel of a step takes longer by `contention · (1 − 1 / growth_of(batch))`
    of its time.

    Fitted to published figures:

    Attributes:
        device_scale: To a TPOT of 5.98 ms at concurrency 1 without overlap.
        growth: With `exponent` to 7.70 and 14.89 ms at concurrency 8 and 32, likewise.
        exponent: See `growth`.
        compressor_scale: Of the compressors' kernels: to a TPOT that is 8.5 % lower with overlap
            at concurrency 1.
        contention: Assumed. 1 is fair sharing, 0 none.
    """

    device_scale: float = 0.705636
    growth: float = 0.0475145
    exponent: float = 1.12856
    compressor_scale: float = 1.05703
    contention: float = 1.0

    def _grown(self, requests: float) -> float:
        batch = requests * TOKENS_PER_VERIFY
        return 1 + self.growth * (float(batch**self.exponent) - 1)

    # Python 3.11 has no `typing.override`.
    def decode_ns(self, kernel: KernelTime, requests: float) -> int:  # type: ignore[explicit-override]
        """Return what a kernel of a decode step takes."""
        if kernel.part in _COMPRESSORS:
            return max(round(kernel.weight_ns * self.compressor_scale), 1)
        return max(round(kernel.weight_ns * self.device_scale * self._grown(requests)), 1)

    def sensitivity(  # type: ignore[explicit-override]
        self, kernel: KernelTime, requests: float
    ) -> float:
        """Return by how much of its time a kernel takes longer beside another one."""
        del kernel
        return self.contention * (1 - 1 / self._grown(requests))


@dataclass(frozen=True, slots=True)
class Model:
    """What the table is made with.

    Attributes:
        costs: Of kernels and host.
        graph_dispatch_ns: Between kernels of a graph: fitted to how much of the wall time the main
            stream is busy without overlap. This model has more and longer gaps than that of `s1`.
        forks_per_layer: How many packets a fork puts into the forward's queue, and a join as many,
            on average of the layers. Each is assumed to cost what a kernel's dispatch does.
        ordering_edges: Whether pending waits cost nothing.
        side_streams: For compressors.
        hw_queues: `GPU_MAX_HW_QUEUES`.
        cycles: Timed.
    """

    costs: OverlapCosts = OverlapCosts()
    graph_dispatch_ns: int = 1_719
    forks_per_layer: float = FORKS_PER_LAYER
    ordering_edges: bool = True
    side_streams: int = 2
    hw_queues: int = 4
    cycles: int = TIMED_CYCLES

    @property
    def dispatch_ns(self) -> int:
        """Before a kernel that follows a fork or a join; of a launch, too, which is rare."""
        return round(self.graph_dispatch_ns * (1 + self.forks_per_layer))

    def run(self, batch: int, *, is_on: bool, recorder: Recorder | None = None) -> Cycles:
        """Time decode steps of a batch."""
        config = EngineConfig(
            policy="forward-stream",
            compressor_overlap=is_on,
            side_streams=self.side_streams,
            speculative_tokens=0,
            max_running=batch,
            has_tensors=False,
        )
        timing = {"graph_dispatch_ns": self.graph_dispatch_ns, "dispatch_ns": self.dispatch_ns}
        device = {
            "ordering_edges": self.ordering_edges,
            "max_hw_queues": self.hw_queues,
            "timing": timing,
        }
        return decode_cycles(
            config, costs=self.costs, device=device, recorder=recorder, cycles=self.cycles
        )

    def profile(self, batch: int, *, is_on: bool) -> Profile:
        """Return what a trace of the same steps shows."""
        with tempfile.TemporaryDirectory() as folder:
            with Recorder(Path(folder), environment={}) as recorder:
                self.run(batch, is_on=is_on, recorder=recorder)
                path = recorder.close()
            return stream_profile(path, self.cycles - 1)


MODEL = Model()


def _row(
    row: str, metric: str, published: float | None, ours: float, kind: Kind = "predicted"
) -> Row:
    return Row("s3", row, metric, published, ours, kind)


def rows(say: Say, model: Model = MODEL) -> list[Row]:
    """Run everything on a model and on the same one without ordering edges."""
    polled = replace(model, ordering_edges=False)
    made = []
    for known in OVERLAP:
        say(f"s3: concurrency {known.concurrency}")
        made += _tpot(known, model, polled)
    say(f"s3: profile at concurrency {PROFILE_CONCURRENCY}")
    off, on = (model.profile(PROFILE_CONCURRENCY, is_on=is_on) for is_on in (False, True))
    # How many steps were profiled is not known; as many of ours as take the same time.
    steps = PROFILE_OFF.wall_ms / off.streams.wall_ms
    made += _streams("profile, off", PROFILE_OFF, off.streams, steps, ("main_busy_ms", "wall_ms"))
    made += _streams("profile, on", PROFILE_ON, on.streams, steps, ())
    slow = polled.profile(PROFILE_CONCURRENCY, is_on=True)
    longer = [(one.all_reduce_us / off.all_reduce_us - 1) * 100 for one in (on, slow)]
    skew = all_reduce_skew(on, slow) * 100
    return [
        *made,
        _row("profile, on", "all-reduce and gap longer, %", None, longer[0]),
        _row("on, no ordering edges", "all-reduce and gap longer, %", None, longer[1]),
        _row("on, no ordering edges", "all-reduce longer, 8 ranks, %", ALL_REDUCE_PERCENT, skew),
    ]


def _tpot(known: Overlap, model: Model, polled: Model) -> list[Row]:
    batch, name = known.concurrency, f"concurrency {known.concurrency}"
    off, on, slow_off, slow_on = (
        one.run(batch, is_on=is_on).cycle_ms for one in (model, polled) for is_on in (False, True)
    )
    off_kind: Kind = "fitted" if batch in FITTED_OFF else "predicted"
    on_kind: Kind = "fitted" if batch == 1 else "predicted"
    slower = (slow_on / slow_off - 1) * 100
    return [
        _row(name, "off, TPOT ms", known.off_ms, off, off_kind),
        _row(name, "on, TPOT ms", known.on_ms, on, on_kind),
        _row(name, "change of TPOT, %", known.change_percent, (on / off - 1) * 100, on_kind),
        _row(name, "change without ordering edges, %", None, slower),
    ]


def _streams(
    name: str, known: StreamProfile, ours: StreamProfile, steps: float, fitted: tuple[str, ...]
) -> list[Row]:
    made = []
    for figure, metric in _PROFILE_METRICS.items():
        kind: Kind = "fitted" if figure in fitted else "predicted"
        scale = steps if figure.endswith("_ms") else 1
        made.append(_row(name, metric, getattr(known, figure), scale * getattr(ours, figure), kind))
    return made


# By name of the figure of a `StreamProfile`: what the table calls it.
_PROFILE_METRICS = {
    "main_busy_ms": "main stream busy, ms",
    "side_busy_ms": "side streams busy, ms",
    "concurrency": "concurrency",
    "wall_ms": "wall, ms",
}

TABLE = Table(
    "s3",
    "Compressors on side streams (on) or in line (off), one token a step, with ordering edges",
    rows,
    "5 constants fitted to 5 figures: TPOT off at concurrency 1, 8 and 32, the change at 1, and "
    "the busy share of the main stream with overlap off. The wall time of the profile off says "
    "only how many steps it spans. Predicted are TPOT off at 4 and 16, the changes at 4, 8, 16 "
    "and 32, and main stream, side streams, concurrency and wall of the profile on: 10 figures. "
    "Assumed: that each fork and each join of a side stream is a packet that costs what a "
    "kernel's dispatch does (no constant; they are counted in SGLang's source, but other prices "
    "were tried, and the busy time of side streams was known, see docs/engine.md); that two "
    "kernels get half of the device each while both need all of it, and need it for as long as "
    "they take longer than at batch 1 (no constant, but the form was chosen knowing the figures); "
    "that idle time lies between kernels, not between steps; the layers, and how long kernels "
    "take relative to each other. Without ordering edges the pending wait of s1 predicts all; "
    "that an all-reduce is as late as the last of 8 ranks, each delayed by the rest of a poll, is "
    "assumed and computed beside the run, whose time per token is without it. 1.1 ms on other "
    "streams with overlap off are not modelled.",
)
