"""Record the engine of `instrumented_runtime` under three stream policies; needs a GPU and torch.

Every verify cycle is three graphs (draft, verify of 887 kernels, draft-extend) and, before them,
what the scheduler prepares: uploads, the lengths that the cycle before published, small kernels.
The policies differ in how the scheduler waits for those lengths, and where it works:

- `host-sync`: the host blocks on the publish event, so it prepares while only draft-extend runs.
- `event-wait`: a stream of the scheduler's own waits for the event; the host runs on.
- `forward-stream`: the scheduler works on the forward stream, whose order satisfies the wait.

The host's work is what the engine's Python takes; nothing is added to it. Kernels of the decoder
compute its tokens, and all others spin for the time `instrumented_runtime.costs` gives them, times
`DEVICE_SCALE`. Whatever an engine says here is compared with the model on the host; if it differs,
the exit code is 1.

Cycles are measured without markers and without the profiler: each round builds a new engine per
policy, in the order A B C, C B A, and so on, and another to time the host. One JSON line per policy
says what came out. Then one Kineto trace per policy is recorded, with markers and longer kernels.

    python samples/record_engine.py --out traces
"""

import argparse
import contextlib
import gzip
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import Costs
from instrumented_runtime.devices import Markers
from instrumented_runtime.devices.torch_device import TorchDevice
from instrumented_runtime.devices.virtual import Config as VirtualConfig
from instrumented_runtime.devices.virtual import VirtualDevice
from instrumented_runtime.engine import Engine
from instrumented_runtime.marks import Marks, backend_named, parse
from instrumented_runtime.request import Request

POLICIES = ("host-sync", "event-wait", "forward-stream")
BATCH_SIZE = 4
PROMPT_TOKENS = 64
MAX_NEW_TOKENS = 900
CONFIG = EngineConfig(max_running=BATCH_SIZE, chunk_tokens=256, page_size=16, max_tokens=1024)
# A verify of about 3 ms, of kernels of a few µs each.
DEVICE_SCALE = 0.25
# So long that the device is the slower side also while a profiler slows the host severalfold.
TRACED_DEVICE_SCALE = 1.0
WARM_CYCLES = 20
CYCLES = 100


class Stopwatch(Marks):
    """No markers, but the times at which the host entered and left each range."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[str, int, int]] = []

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Time a range."""
        start_ns = time.perf_counter_ns()
        yield
        self.ranges.append((name, start_ns, time.perf_counter_ns()))


class Repeating:
    """A backend that can say again what lives, since the profiler starts after the engine."""

    def __init__(self, backend: Markers) -> None:
        self._backend = backend
        self.push, self.pop = backend.push, backend.pop
        self._alive: list[str] = []

    def mark(self, text: str) -> None:
        """Write an instant."""
        statement = parse(text)
        if statement is not None and statement.verb in ("stream", "buffer", "graph"):
            self._alive.append(text)
        self._backend.mark(text)

    def say_again(self) -> None:
        """Write every stream, buffer and graph once more."""
        for text in self._alive:
            self._backend.mark(text)


class Engines:
    """Engines that decode, by policy, and what they have to say.

    All share one device, so that kernels spin equally long.
    """

    def __init__(self, device_scale: float) -> None:
        self.device = TorchDevice()
        self._costs = Costs(device_scale=device_scale)
        oracle = replace(CONFIG, has_tensors=False)
        requests = _requests()
        virtual = VirtualDevice(VirtualConfig(tensors=False, host_costs_ns=self._costs.host_ns))
        Engine(virtual, oracle).run(requests, overlapped=False)
        self._expected = [request.output for request in requests]

    def decoding(
        self, policy: str, marks: Marks | None = None, *, overlapped: bool = True
    ) -> tuple[Engine, list[Request]]:
        """Return a new engine that decodes all its requests, warm, and those."""
        config = replace(CONFIG, policy=policy)
        engine = Engine(self.device, config, costs=self._costs, marks=marks)
        requests = _requests()
        for request in requests:
            engine.add(request)
        step = engine.overlapped_step if overlapped else engine.step
        while engine.num_running < len(requests):
            step()
        for _ in range(WARM_CYCLES):
            step()
        return engine, requests

    def check(self, policy: str, requests: Sequence[Request]) -> None:
        """Leave with exit code 1 if requests were told anything but what the host model says."""
        for request, expected in zip(requests, self._expected, strict=True):
            said = request.output
            if not said or said != expected[: len(said)]:
                sys.exit(f"{policy}: request {request.request_id} differs from the host model")


def _requests() -> list[Request]:
    draw = random.Random(0)
    prompts = [[draw.randrange(512) for _ in range(PROMPT_TOKENS)] for _ in range(BATCH_SIZE)]
    return [Request(i, tuple(prompt), MAX_NEW_TOKENS) for i, prompt in enumerate(prompts)]


def _cycle_us(engines: Engines, policy: str) -> float:
    engine, requests = engines.decoding(policy)
    start = time.perf_counter()
    for _ in range(CYCLES):
        engine.overlapped_step()
    passed_s = time.perf_counter() - start
    torch.cuda.synchronize()
    engines.check(policy, requests)
    return passed_s * 1e6 / CYCLES


def _host_us(engines: Engines, policy: str) -> tuple[float, float]:
    """Time the host's work, one step after the other so that nothing is waited for in between.

    Returns medians of preparation, from the lengths being there to the draft being launched, which
    is what `host-sync` lets the device wait for; and of the whole cycle but for its results.
    """
    stopwatch = Stopwatch()
    engine, requests = engines.decoding(policy, stopwatch, overlapped=False)
    stopwatch.ranges.clear()
    for _ in range(CYCLES):
        engine.step()
    engines.check(policy, requests)

    def median_us(first: str, last: str) -> float:
        starts = [start for name, start, _ in stopwatch.ranges if name == first]
        ends = [end for name, _, end in stopwatch.ranges if name == last]
        times = [end - start for start, end in zip(starts, ends, strict=True)]
        return statistics.median(times) / 1e3

    return (
        median_us("FutureMap.resolve_seq_lens_cpu", "draft"),
        median_us("Scheduler.next_batch", "draft-extend"),
    )


def _measured(engines: Engines, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return, by policy and by what was measured, one figure a round."""
    names = ("cycle_us", "host_preparation_us", "host_launching_us")
    figures: dict[str, dict[str, list[float]]] = {
        policy: {name: [] for name in names} for policy in POLICIES
    }
    for number in range(rounds):
        for policy in POLICIES[:: -1 if number % 2 else 1]:
            one = (_cycle_us(engines, policy), *_host_us(engines, policy))
            for name, value in zip(names, one, strict=True):
                figures[policy][name].append(value)
    return figures


def _record(engines: Engines, policy: str, steps: int, path: Path) -> None:
    backend = backend_named("record_function")
    assert backend is not None
    repeating = Repeating(backend)
    engine, requests = engines.decoding(policy, Marks(repeating))
    torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    config = _ExperimentalConfig(enable_cuda_sync_events=True)
    with profile(activities=activities, experimental_config=config) as profiler:
        repeating.say_again()
        for _ in range(steps):
            engine.overlapped_step()
        torch.cuda.synchronize()
    engines.check(policy, requests)
    # The profiler writes the name it is given into the trace: give it one without a folder.
    with contextlib.chdir(path.parent):
        plain = Path(path.stem)
        profiler.export_chrome_trace(str(plain))
        Path(path.name).write_bytes(gzip.compress(plain.read_bytes(), 9, mtime=0))
        plain.unlink()


def _spread(values: Sequence[float]) -> dict[str, float | int]:
    return {
        "median": round(statistics.median(values), 1),
        "min": round(min(values), 1),
        "max": round(max(values), 1),
        "n": len(values),
    }


def main() -> None:
    """Measure and record every policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the traces")
    parser.add_argument("--rounds", type=int, default=10, help="measurements of each policy")
    parser.add_argument("--steps", type=int, default=8, help="steps in each trace")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    engines = Engines(DEVICE_SCALE)
    # The first to run also loads what the others find loaded.
    _measured(engines, 1)
    for policy, figures in _measured(engines, arguments.rounds).items():
        about = {
            "policy": policy,
            "device": engines.device.name,
            "torch": torch.__version__,
            "batch_size": BATCH_SIZE,
            "cycles_per_n": CYCLES,
        }
        spreads = {name: _spread(values) for name, values in figures.items()}
        print(json.dumps(about | spreads))
    engines = Engines(TRACED_DEVICE_SCALE)
    # The profiler's first recording is slower than later ones.
    _record(engines, POLICIES[0], 2, arguments.out / "warmup.json.gz")
    (arguments.out / "warmup.json.gz").unlink()
    for policy in POLICIES:
        path = arguments.out / f"engine_{policy.replace('-', '_')}.json.gz"
        _record(engines, policy, arguments.steps, path)


if __name__ == "__main__":
    main()
