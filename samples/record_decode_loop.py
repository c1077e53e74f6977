"""Record a decode loop under four ways of waiting for the previous step; needs a GPU and torch.

Every step replays one graph of 512 kernels of a few µs and publishes a length that the next step's
preparation needs. What differs is who waits for it:

- `host-sync`: the host blocks on the publish event, then prepares, then launches. Nothing of the
  next step is prepared while the graph runs, so the device idles for the whole preparation.
- `item`: the same, but the host reads the published length with `.item()`.
- `event-wait`: a separate schedule stream waits for the event; the host runs on.
- `forward-stream`: the preparation's device work goes to the forward stream itself, where stream
  order satisfies the wait.

In the last two the host only follows two steps behind, as an overlapped scheduler does when it
reads the tokens of an earlier step. One Kineto trace per policy, and a JSON line per policy with
the cycle time measured without the profiler.

    python samples/record_decode_loop.py --out traces
"""

import argparse
import contextlib
import gzip
import json
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

KERNELS = 512
# Long enough that the device is the slower side also while a profiler slows the launches.
ELEMENTS = 2 << 20
PREPARE_S = 550e-6
STEPS_IN_FLIGHT = 2


class DecodeLoop:
    """One graph, its buffers and its streams; `step` is one decode step under the chosen policy."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.forward = torch.cuda.Stream()
        self.schedule = torch.cuda.Stream()
        self.hidden = torch.zeros(ELEMENTS, device="cuda")
        self.length = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.plan_host = torch.zeros(64, dtype=torch.int64, pin_memory=True)
        self.plan = torch.zeros(64, dtype=torch.int64, device="cuda")
        self.published = torch.cuda.Event()
        self.planned = torch.cuda.Event()
        self.in_flight: deque[torch.cuda.Event] = deque()
        self.graph = self._capture()

    def _capture(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        self.forward.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.forward):
            self.hidden.add_(1)
            self.length.add_(1)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=self.forward):
            for _ in range(KERNELS - 1):
                self.hidden.add_(1)
            self.length.add_(1)
        with torch.cuda.stream(self.forward):
            self.published.record()
        torch.cuda.synchronize()
        return graph

    def step(self, number: int) -> None:
        """Prepare and launch one step."""
        with record_function(f"tk1 step {number} kind=decode bs=1"):
            with record_function("resolve_seq_lens"):
                self._resolve()
            with record_function("prepare"):
                _host_work(PREPARE_S)
                self.plan_host.fill_(number)
            with record_function("launch"):
                self._launch()

    def _resolve(self) -> None:
        if self.policy == "host-sync":
            self.published.synchronize()
        elif self.policy == "item":
            with torch.cuda.stream(self.forward):
                self.length.item()
        elif len(self.in_flight) == STEPS_IN_FLIGHT:
            self.in_flight.popleft().synchronize()

    def _launch(self) -> None:
        stream = self.schedule if self.policy == "event-wait" else self.forward
        with torch.cuda.stream(stream):
            if self.policy == "event-wait":
                stream.wait_event(self.published)
            self.plan.copy_(self.plan_host, non_blocking=True)
            self.plan.add_(self.length)
            self.planned.record()
        with torch.cuda.stream(self.forward):
            self.forward.wait_event(self.planned)
            self.graph.replay()
            self.published.record()
            done = torch.cuda.Event()
            done.record()
        self.in_flight.append(done)


def _host_work(duration_s: float) -> None:
    """Keep the thread busy: preparation is work, and sleeping would hide in the scheduler."""
    until = time.perf_counter() + duration_s
    while time.perf_counter() < until:
        pass


def _run(loop: DecodeLoop, steps: int) -> None:
    for number in range(steps):
        loop.step(number)
    torch.cuda.synchronize()
    loop.in_flight.clear()


def _cycle_ms(loop: DecodeLoop, steps: int) -> float:
    start = time.perf_counter()
    _run(loop, steps)
    return (time.perf_counter() - start) * 1e3 / steps


def _record(loop: DecodeLoop, steps: int, path: Path) -> None:
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    config = _ExperimentalConfig(enable_cuda_sync_events=True)
    with profile(activities=activities, experimental_config=config) as profiler:
        _run(loop, steps)
    # The profiler writes the name it is given into the trace: give it one without a folder.
    with contextlib.chdir(path.parent):
        plain = Path(path.stem)
        profiler.export_chrome_trace(str(plain))
        Path(path.name).write_bytes(gzip.compress(plain.read_bytes(), 9, mtime=0))
        plain.unlink()


def _measure(policy: str, steps: int, out: Path, write: Callable[[str], object]) -> None:
    loop = DecodeLoop(policy)
    _run(loop, 50)
    cycles = [_cycle_ms(loop, 200) for _ in range(5)]
    _record(loop, 5, out / "warmup.json.gz")
    (out / "warmup.json.gz").unlink()
    _record(loop, steps, out / f"decode_{policy.replace('-', '_')}.json.gz")
    figures = {
        "policy": policy,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "untraced_cycle_ms_median": round(statistics.median(cycles), 4),
        "untraced_cycle_ms_min_max": [round(min(cycles), 4), round(max(cycles), 4)],
        "n": len(cycles),
        "steps_per_n": 200,
    }
    write(json.dumps(figures))


def main() -> None:
    """Record every policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the traces")
    parser.add_argument("--steps", type=int, default=10, help="steps in each trace")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for policy in ("host-sync", "item", "event-wait", "forward-stream"):
        _measure(policy, arguments.steps, arguments.out, print)


if __name__ == "__main__":
    main()
