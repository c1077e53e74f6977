"""How many ops the virtual device simulates and records a second, where only time counts.

    python bench/virtual.py [--ops 1000000] [--rounds 5]

Each round in a fresh process; seconds are of CPU, all threads. An op is a dispatch or a copy with
the HIP call behind it; of a graph each kernel is one. Three programs, recorded to a spool and not:

- launches: kernels on one stream, one call each.
- streams: kernels on two streams that run side by side and wait for each other, and copies.
- decode: a step of a decoder: a graph of 500 kernels, an event, a copy, a synchronise.

Then the time it takes to make the rocpd file of the spool. Exits 1 when the slowest recorded
program is below the limit.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from limits import Limit, exit_status

from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.recorder import Recorder

OPS_PER_S = 150_000


def launches(device: VirtualDevice, ops: int) -> None:
    """Launch kernels on one stream."""
    stream, kernel = device.stream(), Kernel("kernel", 3_000)
    for _ in range(ops):
        device.launch(kernel, stream)


def streams(device: VirtualDevice, ops: int) -> None:
    """Launch on two streams that wait for each other every eight kernels, and copy."""
    one, two = device.stream(), device.stream()
    forth, back = device.event(), device.event()
    there = device.allocate([1024], "float32")
    here = device.host_buffer([1024], "float32", pinned=True)
    kernel, reduce = Kernel("kernel", 4_000), Kernel("all_reduce", 6_000, sensitivity=0.4)
    for _ in range(ops // 16):
        device.copy_async(there, here, one)
        for _ in range(7):
            device.launch(kernel, one)
        forth.record(one)
        for _ in range(8):
            device.launch(reduce, two)
        back.record(two)
        back.wait(one)
        forth.wait(two)


def decode(device: VirtualDevice, ops: int) -> None:
    """Replay a graph of 500 kernels per step, copy the tokens and wait for them."""
    stream, event, kernel = device.stream(), device.event(), Kernel("kernel", 3_000)
    tokens = device.allocate([64], "int64")
    here = device.host_buffer([64], "int64", pinned=True)
    with device.capture(stream) as graph:
        for _ in range(500):
            device.launch(kernel, stream)
    for _ in range(ops // 501):
        graph.replay(stream)
        device.copy_async(here, tokens, stream)
        event.record(stream)
        event.synchronize()


PROGRAMS: dict[str, Callable[[VirtualDevice, int], None]] = {
    "launches": launches,
    "streams": streams,
    "decode": decode,
}


def measured(program: Callable[[VirtualDevice, int], None], ops: int) -> dict[str, float]:
    """Return ops a second without and with recording, and of making the file."""
    rates = {}
    started = time.process_time()
    device = VirtualDevice(Config(tensors=False))
    program(device, ops)
    device.synchronize()
    rates["simulated"] = ops / (time.process_time() - started)
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        recorder = Recorder(Path(folder), environment={})
        device = VirtualDevice(Config(tensors=False), recorder)
        program(device, ops)
        device.synchronize()
        rates["recorded"] = ops / (time.process_time() - started)
        started = time.process_time()
        recorder.close()
        rates["finalised"] = ops / (time.process_time() - started)
    return rates


def main() -> int:
    """Measure every program alternately, print medians, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in PROGRAMS}
    fresh = {"mp_context": get_context("spawn"), "max_tasks_per_child": 1}
    with ProcessPoolExecutor(1, **fresh) as pool:
        for _ in range(arguments.rounds):
            for name, program in PROGRAMS.items():
                runs[name].append(pool.submit(measured, program, arguments.ops).result())
    worst = float("inf")
    for name, rates in runs.items():
        for what in rates[0]:
            each = sorted(run[what] for run in rates)
            median = statistics.median(each)
            print(
                f"{name:9} {what:10} median {median:>10,.0f} ops/s  "
                f"(min {each[0]:,.0f}, max {each[-1]:,.0f}, n={len(each)})"
            )
            if what == "recorded":
                worst = min(worst, median)
    print(
        f"{os.cpu_count()} cores, one used, {platform.machine()}, Python "
        f"{platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )
    # As a limit from above: how many times too slow.
    name = f"ops a second asked for ({OPS_PER_S:,}) / the slowest recorded program's"
    return exit_status([Limit(name, OPS_PER_S / worst, 1, "×")])


if __name__ == "__main__":
    sys.exit(main())
