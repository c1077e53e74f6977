"""Figures that the authors of the fixes published, as the bench prints them.

From public pull requests to SGLang (sgl-project/sglang#41994 among them), measured on 4 × MI355X
(TP4/EP4, DeepSeek-V4.1-Flash, DSpark block 5); `base` is `host-sync` with the old delay rule.
"""

from dataclasses import dataclass

# Drafted tokens that are accepted, and the bonus token, per verify: 351.7 tok/s × 9.19 ms.
ACCEPTANCE = 3.23


@dataclass(frozen=True, slots=True)
class Cell:
    """One batch size of the decode table.

    Attributes:
        batch: Requests.
        base_ms: Per verify cycle.
        fix_ms: The same with the scheduler on the forward stream.
        change: Of verify cycles per second (at batch 1 of decode tokens per second), as a share.
        interval: Its published 95 % interval.
    """

    batch: int
    base_ms: float
    fix_ms: float
    change: float
    interval: tuple[float, float]


DECODE = (
    Cell(1, 9.19, 8.60, 0.0669, (0.0535, 0.0807)),
    Cell(8, 1e3 / 66.78, 1e3 / 69.57, 0.0418, (0.0351, 0.0484)),
    Cell(32, 1e3 / 41.10, 1e3 / 42.21, 0.0272, (0.0232, 0.0317)),
    Cell(64, 1e3 / 30.62, 1e3 / 31.14, 0.0172, (0.0148, 0.0194)),
)
BATCH_1_TOKENS_PER_S = (351.7, 375.2)

# 512 kernels in a graph, without and with a wait pending in another hardware queue.
GRAPH_KERNELS = 512
GRAPH_US = (853.0, 1541.0)
# What a pending wait adds to a verify.
EVENT_WAIT_MS = 1.2
# What it costs to move the scheduler without speculation, at batch 8 to 256.
UNSPECULATIVE_CHANGE = (0.002, 0.003)


@dataclass(frozen=True, slots=True)
class Burst:
    """256 distinct prompts of 4096 tokens at once, 3072 new tokens each; None is unpublished."""

    tokens_per_s: float | None
    ttft_max_s: float
    ttft_median_s: float | None
    tpot_median_ms: float | None


BURST_BASE = Burst(7682, 74.9, 8.06, 26.4)
BURST_BOTH = Burst(8347, 15.7, 8.10, 26.1)
BURST_DELAYER = Burst(None, 15.6, None, None)


@dataclass(frozen=True, slots=True)
class Change:
    """A change against the base, in per cent, with its 95 % interval if there is one."""

    percent: float
    interval: tuple[float, float] | None = None


# By metric, as `Burst` has them.
DELAYER_CHANGES = {
    "tokens_per_s": Change(7.68, (7.08, 8.12)),
    "ttft_max_s": Change(-79.2),  # from 75 to 15.6 s
    "ttft_median_s": Change(0.07),
}
BOTH_CHANGES = {
    "tokens_per_s": Change(8.67, (8.38, 8.96)),
    "ttft_max_s": Change(-79.1),
    "ttft_median_s": Change(0.46),
    "tpot_median_ms": Change(-0.97),
}


@dataclass(frozen=True, slots=True)
class Overlap:
    """Time per output token at one concurrency, compressors in line and on side streams.

    MI355X, TP8, 8k tokens in and 1k out, `GPU_MAX_HW_QUEUES=4` (sgl-project/sglang#39314).
    """

    concurrency: int
    off_ms: float
    on_ms: float
    change_percent: float


OVERLAP = (
    Overlap(1, 5.98, 5.47, -8.5),
    Overlap(4, 6.42, 6.13, -4.5),
    Overlap(8, 7.70, 7.26, -5.7),
    Overlap(16, 10.36, 10.24, -1.2),
    Overlap(32, 14.89, 14.97, 0.5),
)


@dataclass(frozen=True, slots=True)
class StreamProfile:
    """A profile of some steps; concurrency is the sum of busy times over their union."""

    main_busy_ms: float
    side_busy_ms: float
    concurrency: float
    wall_ms: float


# At concurrency 4; how many steps it spans is not published.
PROFILE_CONCURRENCY = 4
PROFILE_OFF = StreamProfile(1269.5, 1.1, 1.000, 1665.5)
PROFILE_ON = StreamProfile(1141.0, 161.4, 1.095, 1561.1)
# How much longer the all-reduce takes with overlap where waits are polled in host memory.
ALL_REDUCE_PERCENT = 40.0


@dataclass(frozen=True, slots=True)
class Serving:
    """A stream of requests, 8k tokens in and 1k out, with the plan copied as it was at first.

    MI355X (vllm-project/vllm#58886 and #58887): the fault came when so many requests were done;
    with plans staged all are served.
    """

    concurrency: int
    prompts: int
    seed: int
    faults_at: int


# No seed is given for the second.
SERVING = (
    Serving(32, 1024, 4, 111),
    Serving(32, 2048, 4, 79),
    Serving(64, 1024, 4, 61),
    Serving(32, 1024, 5, 117),
)
# Of prefill steps whose plan is made while the prefill before is pending, in per cent.
UNDER_WAY_PERCENT = 9.0
# Of plan updates made then, those that returned only after that prefill, on ROCm 7.2; none on 10.
UPDATES, LATE_UPDATES = 80, 55
# What an update takes at most on ROCm 10.
UPDATE_MS = 1.0
# As it was at first, and with plans staged.
SERVING_TOKENS_PER_S = (1083.0, 1082.6)
