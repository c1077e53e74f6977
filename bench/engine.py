"""How long a burst takes to simulate: 256 prompts of 4096 tokens, 3072 new tokens each.

    python bench/engine.py [--rounds 3]

Seconds of CPU of one process, all threads, where the device computes nothing, which is how the
published tables are made. Exits 1 when a burst takes longer than the limit.
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

from instrumented_runtime.bench import s2
from instrumented_runtime.bench.simulate import burst

LIMIT_S = 120.0


def main() -> int:
    """Measure, print the median, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    times = []
    for _ in range(arguments.rounds):
        started = time.process_time()
        burst(s2.burst_config("host-sync", "free-slots"), costs=s2.COSTS)
        times.append(time.process_time() - started)
    median = statistics.median(times)
    print(f"median {median:.1f} s (min {min(times):.1f}, max {max(times):.1f}, n={len(times)})")
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    return exit_status([Limit("seconds of CPU for a burst", median, LIMIT_S, " s")])


if __name__ == "__main__":
    sys.exit(main())
