"""How far a GPU, the oracle and torch's stream sanitizer agree on generated programs.

    python bench/agreement.py write FILE [--programs 200]    where Hypothesis is
    python bench/agreement.py run FILE [--runs 10]           where a GPU is
    python bench/agreement.py sanitize FILE                  likewise

`run` executes each program many times on `TorchDevice` with random delays before its kernels and
copies, and compares what each read saw with what the oracle says it can see. `sanitize` executes
each once under torch's CUDA sanitizer and compares what that calls a race with what the oracle
does. The sanitizer knows streams, events and synchronisation of torch, not the host's memory,
graphs and the null stream's rules: what a program has of those is left out.
"""

import argparse
import pickle
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "runtime"))

from oracle import observations, racy
from programs import (
    NULL,
    CopyAsync,
    DeviceSync,
    EventSync,
    Launch,
    Program,
    Record,
    StreamSync,
    Wait,
)

from instrumented_runtime.devices import Buffer, Device, Kernel, Stream

SCHEDULES = 200
LONGEST_DELAY_NS = 200_000
_KNOWN = (Launch, Record, Wait, EventSync, StreamSync, DeviceSync)


def write(path: Path, count: int) -> int:
    """Generate programs; always the same."""
    from hypothesis import HealthCheck, Phase, given, settings
    from program_strategies import program_strategy

    programs: list[Program] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(program_strategy())
    def collect(program: Program) -> None:
        programs.append(program)

    collect()
    programs = list(dict.fromkeys(programs))
    path.write_bytes(pickle.dumps(programs))
    print(f"Wrote {path}: {len(programs)} programs")
    return 0


class Delaying:
    """A device that is late at random: it spins before kernels and copies."""

    def __init__(self, device: Device, random_: random.Random) -> None:
        self._device, self._random = device, random_

    def __getattr__(self, name: str) -> object:
        return getattr(self._device, name)

    def _delay(self, stream: Stream) -> None:
        if self._random.random() < 0.5:
            delay_ns = self._random.randrange(1_000, LONGEST_DELAY_NS)
            self._device.launch(Kernel("delay", delay_ns), stream)

    def launch(
        self,
        kernel: Kernel,
        stream: Stream,
        reads: Sequence[Buffer] = (),
        writes: Sequence[Buffer] = (),
    ) -> None:
        """Launch, perhaps behind a delay."""
        self._delay(stream)
        self._device.launch(kernel, stream, reads, writes)

    def copy_async(
        self,
        destination: Buffer,
        source: Buffer,
        stream: Stream,
        *,
        size_bytes: int | None = None,
    ) -> None:
        """Copy, perhaps behind a delay."""
        self._delay(stream)
        self._device.copy_async(destination, source, stream, size_bytes=size_bytes)


def run(programs: Sequence[Program], runs: int) -> int:
    """Print how many reads saw what; return 1 if one saw what the oracle calls impossible."""
    from run_program import run_program

    from instrumented_runtime.devices.torch_device import TorchDevice

    device = TorchDevice()
    counts = Counter()
    for number, program in enumerate(programs):
        possible = observations(program, SCHEDULES)
        seen = {read: set() for read in possible}
        for again in range(runs):
            late = Delaying(device, random.Random(f"{number} {again}"))
            for read, value in run_program(program, late).items():
                seen[read].add(value)
        races = racy(possible)
        counts["programs"] += 1
        counts["racy programs"] += bool(races)
        for read, values in seen.items():
            if not values:
                continue
            kind = "racy" if read in races else "not racy"
            counts[f"{kind} reads"] += 1
            counts[f"{kind} reads that saw several values"] += len(values) > 1
            if read not in races and not values <= possible[read]:
                counts["DISAGREE: not racy, saw another value"] += 1
                print("disagree", program, read, values, possible[read])
            if read in races and not values <= possible[read]:
                counts["racy reads that saw a value the oracle did not"] += 1
    report(counts, f"{runs} runs each, {device.name}")
    return int(any(what.startswith("DISAGREE") for what in counts))


def sanitize(programs: Sequence[Program]) -> int:
    """Print how verdicts compare; a difference is not a failure of either."""
    import torch
    from run_program import run_program
    from torch.cuda import _sanitizer

    from instrumented_runtime.devices.torch_device import TorchDevice

    _sanitizer.enable_cuda_sanitizer()
    device = TorchDevice()
    counts = Counter()
    for program in filter(None, map(known_to_sanitizer, programs)):
        try:
            run_program(program, device)
            is_flagged = False
        except _sanitizer.CUDASanitizerErrors:
            is_flagged = True
        torch.cuda.synchronize()
        is_racy = bool(racy(observations(program, SCHEDULES)))
        verdict = {True: "a race", False: "none"}
        counts[f"oracle {verdict[is_racy]}, sanitizer {verdict[is_flagged]}"] += 1
        if is_racy != is_flagged:
            print("differ", program)
    report(counts, f"torch {torch.__version__}, {device.name}")
    return 0


def known_to_sanitizer(program: Program) -> Program | None:
    """Return the part of a program that the sanitizer understands; None without two kernels."""

    def is_known(each: object) -> bool:
        if isinstance(each, CopyAsync):
            places = {program.buffers[each.destination], program.buffers[each.source]}
            return places == {"device"} and each.stream != NULL
        return isinstance(each, _KNOWN) and getattr(each, "stream", None) != NULL

    part = tuple(filter(is_known, program.instructions))
    enough = sum(isinstance(each, Launch) for each in part) >= 2
    return Program(program.streams, program.buffers, part) if enough else None


def report(counts: Counter[str], where: str) -> None:
    """Print counts by name."""
    print(where)
    for what, count in sorted(counts.items()):
        print(f"{count:8,} {what}")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["write", "run", "sanitize"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.what == "write":
        return write(arguments.file, arguments.programs)
    programs = pickle.loads(arguments.file.read_bytes())
    return run(programs, arguments.runs) if arguments.what == "run" else sanitize(programs)


if __name__ == "__main__":
    sys.exit(main())
