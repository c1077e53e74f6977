"""How long it takes to plan a large prefill on the host: 256 sequences of 4096 tokens, 256 CUs.

python bench/planner.py [--rounds 101]

The time is one of each call, on one thread, into buffers that are there. Exits 1 when the median is
beyond its limit.
"""

import argparse
import os
import platform
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from limits import Limit, exit_status

from instrumented_runtime.prefill.planner import PlanShape, plan, plan_into

LIMIT_MS = 5
SEQUENCES, TOKENS, COMPUTE_UNITS = 256, 4096, 256


def measured_ms(heads: int, rounds: int) -> list[float]:
    """Return the time of each call, ascending."""
    shape = PlanShape(
        max_batch=SEQUENCES, kv_heads=heads, compute_units=COMPUTE_UNITS, max_query_tokens=TOKENS
    )
    lengths = [TOKENS] * SEQUENCES
    arrays = plan(shape, lengths, lengths).arrays
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        plan_into(arrays, shape, lengths, lengths)
        times.append((time.perf_counter() - began) * 1e3)
    return sorted(times)


def main() -> None:
    """Measure with 16 and 128 heads; print medians and the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=101)
    arguments = parser.parse_args()
    medians = {}
    for heads in (16, 128):
        times = measured_ms(heads, arguments.rounds)
        medians[heads] = statistics.median(times)
        print(
            f"{heads:3} heads: median {medians[heads]:.2f} ms "
            f"(min {times[0]:.2f}, max {times[-1]:.2f}, n={len(times)})"
        )
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    sys.exit(exit_status([Limit("plan, 16 heads", medians[16], LIMIT_MS, " ms")]))


if __name__ == "__main__":
    main()
