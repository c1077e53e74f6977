"""What the delay of prefills costs the last requests of a burst."""

from collections.abc import Mapping
from dataclasses import replace

from instrumented_runtime.bench import Kind, Row, Say, Table
from instrumented_runtime.bench.published import (
    BOTH_CHANGES,
    BURST_BASE,
    BURST_BOTH,
    BURST_DELAYER,
    DELAYER_CHANGES,
    Burst,
    Change,
)
from instrumented_runtime.bench.simulate import BURST_REQUESTS, BurstResult, burst
from instrumented_runtime.config import DelayRule, EngineConfig, PolicyName
from instrumented_runtime.costs import Costs

# The burst's contexts are longer than those that decode cycles are fitted to.
COSTS = replace(Costs(), long_context_ns=1_285.0)
# Requests differ in how well they can be drafted; fitted to a maximum TTFT of 74.9 s, which is when
# the first of 253 requests are done.
MISS_SPREAD = 0.039

# By name of the figure, of `Burst` and `BurstResult` alike: what the table calls it.
_METRICS = {
    "tokens_per_s": "output tok/s",
    "ttft_max_s": "TTFT max, s",
    "ttft_median_s": "TTFT median, s",
    "tpot_median_ms": "TPOT median, ms",
}
_FITTED_BASE = ("ttft_max_s", "ttft_median_s", "tpot_median_ms")


def burst_config(policy: PolicyName, rule: DelayRule) -> EngineConfig:
    """Return the engine of the burst."""
    return EngineConfig(
        policy=policy,
        delay_rule=rule,
        max_running=BURST_REQUESTS,
        draft_miss_spread=MISS_SPREAD,
        has_tensors=False,
    )


def _rows(say: Say) -> list[Row]:
    arms: list[tuple[str, Burst, PolicyName, DelayRule]] = [
        ("base", BURST_BASE, "host-sync", "free-slots"),
        ("delayer alone", BURST_DELAYER, "host-sync", "free-slots-and-waiting"),
        ("both fixes", BURST_BOTH, "forward-stream", "free-slots-and-waiting"),
    ]
    results = {}
    rows = []
    for name, published, policy, rule in arms:
        say(f"s2: {BURST_REQUESTS} prompts at once, {name}")
        results[name] = burst(burst_config(policy, rule), costs=COSTS)
        rows += _arm(name, published, results[name])
    for name, known in (("delayer alone", DELAYER_CHANGES), ("both fixes", BOTH_CHANGES)):
        rows += _changes(name, known, results["base"], results[name])
    return rows


def _arm(name: str, published: Burst, result: BurstResult) -> list[Row]:
    rows = []
    is_base = name == "base"
    for figure, metric in _METRICS.items():
        kind: Kind = "fitted" if is_base and figure in _FITTED_BASE else "predicted"
        ours = getattr(result, figure)
        rows.append(Row("s2", name, metric, getattr(published, figure), ours, kind))
    running, waiting = (253.0, 3.0) if is_base else (None, None)
    return [
        *rows,
        Row("s2", name, "running when it settles", running, result.settled[0], "predicted"),
        Row("s2", name, "waiting when it settles", waiting, result.settled[1], "predicted"),
        Row("s2", name, "tokens per verify", None, result.acceptance, "predicted"),
    ]


def _changes(
    name: str, known: Mapping[str, Change], base: BurstResult, arm: BurstResult
) -> list[Row]:
    rows = []
    for figure, metric in _METRICS.items():
        change = (getattr(arm, figure) / getattr(base, figure) - 1) * 100
        what = f"change of {metric.split(',')[0]}, %"
        percent, interval = None, None
        if figure in known:
            percent, interval = known[figure].percent, known[figure].interval
        rows.append(Row("s2", name, what, percent, change, "predicted", interval))
    return rows


TABLE = Table(
    "s2",
    "A burst of 256 prompts of 4096 tokens on 256 slots, 3072 new tokens each",
    _rows,
    "On top of s1, 3 constants fitted to 3 figures of the base: TTFT max and median, TPOT median. "
    "With the fix, TTFT median and max are half and all of the same prefills and follow from the "
    "base. Independent are the output tok/s of three arms and the TPOT of both fixes, 4 degrees of "
    "freedom, and at how many requests it settles, which no constant can move.",
)
