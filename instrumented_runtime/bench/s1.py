"""What it costs how the scheduler waits for the step before."""

import sqlite3
import statistics
import tempfile
from contextlib import closing
from pathlib import Path

from instrumented_runtime.bench import Kind, Row, Say, Table
from instrumented_runtime.bench.published import (
    ACCEPTANCE,
    BATCH_1_TOKENS_PER_S,
    DECODE,
    EVENT_WAIT_MS,
    GRAPH_US,
    UNSPECULATIVE_CHANGE,
    Cell,
)
from instrumented_runtime.bench.simulate import CYCLES, Cycles, decode_cycles, graph_us
from instrumented_runtime.config import EngineConfig, PolicyName
from instrumented_runtime.costs import VERIFY
from instrumented_runtime.recorder import Recorder

UNSPECULATIVE_BATCHES = (8, 32, 64, 128, 256)
# The cells that scaling with the batch is fitted to; all others are predicted.
_FITTED_FIX = (1, 8, 64)


def _cycles(policy: PolicyName, batch: int, *, speculative_tokens: int = 5) -> Cycles:
    config = EngineConfig(
        policy=policy,
        max_running=batch,
        speculative_tokens=speculative_tokens,
        has_tensors=False,
    )
    return decode_cycles(config)


def _row(
    row: str,
    metric: str,
    published: float | None,
    ours: float,
    kind: Kind = "predicted",
    interval: tuple[float, float] | None = None,
) -> Row:
    return Row("s1", row, metric, published, ours, kind, interval)


def _rows(say: Say) -> list[Row]:
    say("s1: a graph of 512 kernels")
    rows = [
        _row("512-kernel graph", "alone, µs", GRAPH_US[0], graph_us(is_waited_for=False), "fitted"),
        _row(
            "512-kernel graph",
            "wait pending elsewhere, µs",
            GRAPH_US[1],
            graph_us(is_waited_for=True),
            "fitted",
        ),
    ]
    base, fix = {}, {}
    for cell in DECODE:
        say(f"s1: batch {cell.batch}")
        base[cell.batch] = _cycles("host-sync", cell.batch)
        fix[cell.batch] = _cycles("forward-stream", cell.batch)
        rows += _cell(cell, base[cell.batch], fix[cell.batch])
        waiting = _cycles("event-wait", cell.batch).cycle_ms
        rows.append(_row(f"batch {cell.batch}", "event-wait, ms per verify", None, waiting))
    every = [*base.values(), *fix.values()]
    acceptance = sum(one.tokens for one in every) / sum(one.verifies for one in every)
    rows += _batch_1(acceptance, base[1], fix[1])
    say("s1: verify under event-wait")
    rows += _event_wait()
    say("s1: without speculation")
    return rows + _unspeculative()


def _cell(cell: Cell, base: Cycles, fix: Cycles) -> list[Row]:
    name = f"batch {cell.batch}"
    is_first = cell.batch == 1
    base_kind: Kind = "fitted" if is_first else "predicted"
    fix_kind: Kind = "fitted" if cell.batch in _FITTED_FIX else "predicted"
    rows = [
        _row(name, "base, ms per verify", cell.base_ms, base.cycle_ms, base_kind),
        _row(name, "fix, ms per verify", cell.fix_ms, fix.cycle_ms, fix_kind),
    ]
    if not is_first:
        rows += [
            _row(name, "base, verify cycles/s", 1e3 / cell.base_ms, 1e3 / base.cycle_ms),
            _row(name, "fix, verify cycles/s", 1e3 / cell.fix_ms, 1e3 / fix.cycle_ms, fix_kind),
        ]
    change = base.cycle_ms / fix.cycle_ms - 1
    low, high = cell.interval
    percent = (low * 100, high * 100)
    # At batch 1 it was published of the throughput; with the same tokens both are one.
    metric = "change of decode tok/s, %" if is_first else "change of verify cycles/s, %"
    return [*rows, _row(name, metric, cell.change * 100, change * 100, base_kind, percent)]


def _batch_1(acceptance: float, base: Cycles, fix: Cycles) -> list[Row]:
    rows = []
    for name, published, cycles in zip(
        ("base", "fix"), BATCH_1_TOKENS_PER_S, (base, fix), strict=True
    ):
        ours = acceptance / cycles.cycle_ms * 1e3
        rows += [
            _row("batch 1", f"{name}, decode tok/s", published, ours, "fitted"),
            # Published is the throughput of one request; this is its inverse.
            _row("batch 1", f"{name}, TPOT ms", 1e3 / published, 1e3 / ours, "fitted"),
        ]
    return [_row("all batches", "tokens per verify", ACCEPTANCE, acceptance, "fitted"), *rows]


def _event_wait() -> list[Row]:
    graphs = {policy: _verify_ms(policy) for policy in ("forward-stream", "event-wait")}
    slower = graphs["event-wait"] - graphs["forward-stream"]
    return [
        # Not published, but 1.2 ms are 893 times what a pending wait adds to one.
        _row("verify", "dispatches", None, len(VERIFY)),
        _row("verify", "longer under event-wait, ms", EVENT_WAIT_MS, slower),
    ]


def _verify_ms(policy: PolicyName) -> float:
    """Return the median time of the verify graph at batch 1, as a trace shows it."""
    config = EngineConfig(policy=policy, max_running=1, has_tensors=False)
    with tempfile.TemporaryDirectory() as folder:
        with Recorder(Path(folder), environment={}) as recorder:
            decode_cycles(config, recorder=recorder)
            path = recorder.close()
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as trace:
            query = 'SELECT start, "end" FROM kernels WHERE name = ? ORDER BY start'
            first, last = (
                trace.execute(query, (kernel.name,)).fetchall()[-CYCLES:]
                for kernel in (VERIFY[0], VERIFY[-1])
            )
    times: list[int] = [end[1] - start[0] for start, end in zip(first, last, strict=True)]
    return statistics.median(times) / 1e6


def _unspeculative() -> list[Row]:
    rows = []
    low, high = UNSPECULATIVE_CHANGE
    percent = (low * 100, high * 100)
    for batch in UNSPECULATIVE_BATCHES:
        name = f"no speculation, batch {batch}"
        apart, moved = (
            _cycles(policy, batch, speculative_tokens=0).cycle_ms
            for policy in ("event-wait", "forward-stream")
        )
        change = (moved / apart - 1) * 100
        rows += [
            _row(name, "schedule stream, TPOT ms", None, apart),
            _row(name, "forward stream, TPOT ms", None, moved),
            _row(name, "change of TPOT, %", None, change, "predicted", percent),
        ]
    return rows


TABLE = Table(
    "s1",
    "How the scheduler waits: the host blocks (base) or it works on the forward stream (fix)",
    _rows,
    "7 constants fitted to 7 figures: both times of the 512-kernel graph, base and fix at batch 1, "
    "fix at batch 8 and 64 (two parameters of scaling), and tokens per verify, from which the rest "
    "of batch 1 follows. Of the 8 cycle times 4 are predicted, which is 4 degrees of freedom; "
    "cycles/s and changes are the same figures again. The verify under event-wait is one more. "
    "What the scheduler costs without speculation is its kernels, assumed, over the cycle.",
)
