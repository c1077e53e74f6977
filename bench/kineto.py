"""How fast the Kineto reader is, against a plain typed decode of the same file in the same run.

    python bench/kineto.py [SCRATCH_FOLDER] [--rounds 3] [--gigabytes 0.92] [--keep]

The file is `mi300x_xdit_flux1_capture_rank0` repeated, each repeat later in time and with its own
correlation and External ids. Both readers run in fresh processes, alternating; time is the call's
own (imports done), CPU that of the whole process and its children, memory the largest sum of
their resident sizes, sampled every 10 ms (pages shared between them count once per process).
Exits 1 when a median is beyond its limit.
"""

import argparse
import gzip
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from limits import Limit, exit_status
from real_traces import REAL_TRACES

ROOT = Path(__file__).resolve().parents[1]
TRACE = REAL_TRACES / "kineto" / "mi300x_xdit_flux1_capture_rank0.json.gz"
TIME_PER_REFERENCE = 1.0
MEMORY_PER_REFERENCE = 0.5
REPEAT_US = 1_000_000
NUMBER = re.compile(rb'("(?:ts|correlation|External id|id)": )(\d+)')


def make_large_file(path: Path, least_bytes: int) -> int:
    """Write the repeated trace and return how many repeats it has."""
    raw = gzip.decompress(TRACE.read_bytes())
    start = raw.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    stop = raw.rindex(b"]")
    head, body, tail = raw[:start], raw[start:stop].rstrip(), raw[stop:]
    largest = max(int(n) for n in re.findall(rb'"(?:correlation|External id)": (\d+)', body))
    repeats = 0
    with path.open("wb") as file:
        file.write(head)
        while file.tell() < least_bytes:
            file.write(b"," * bool(repeats) + shifted(body, repeats, largest + 1))
            repeats += 1
        file.write(tail)
    return repeats


def shifted(body: bytes, repeat: int, numbers: int) -> bytes:
    """Return the events of one repeat: later, and with correlation numbers of their own."""

    def moved(match: re.Match[bytes]) -> bytes:
        by = REPEAT_US if match[1] == b'"ts": ' else numbers
        return match[1] + b"%d" % (int(match[2]) + repeat * by)

    return NUMBER.sub(moved, body)


REFERENCE = """
import gc, sys, time
import msgspec, polars as pl
class Args(msgspec.Struct, gc=False):
    device: int | None = None
    stream: int | None = None
    correlation: int | None = None
    external_id: int | None = msgspec.field(default=None, name="External id")
    kind: str | None = None
    bytes: int | str | None = None
    src: str | None = None
    dst: str | None = None
class Event(msgspec.Struct, gc=False):
    ph: str
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Args | None = None
class File(msgspec.Struct, gc=False):
    traceEvents: list[Event]
    baseTimeNanoseconds: int = 0
gc.disable()
start = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    data = msgspec.json.decode(file.read(), type=File)
none = Args()
rows = [e for e in data.traceEvents if e.ph == "X" and e.cat != "python_function"]
args = [e.args or none for e in rows]
frame = pl.DataFrame({
    **{n: [getattr(e, n) for e in rows] for n in ("cat", "name", "ts", "dur")},
    "pid": [e.pid if isinstance(e.pid, int) else None for e in rows],
    "tid": [e.tid if isinstance(e.tid, int) else None for e in rows],
    **{n: [getattr(a, n) for a in args] for n in
       ("device", "stream", "correlation", "external_id", "kind", "src", "dst")},
    "bytes": [None if a.bytes is None else int(a.bytes) for a in args],
}).with_columns(
    start_ns=data.baseTimeNanoseconds + (pl.col("ts") * 1000).round().cast(pl.Int64),
    dur_ns=(pl.col("dur") * 1000).round().cast(pl.Int64),
)
print(time.perf_counter() - start, len(frame))
"""

OURS = """
import sys, time
from pathlib import Path
from tracekit.formats import silent
from tracekit.formats.kineto import FORMAT
start = time.perf_counter()
trace = FORMAT.read(Path(sys.argv[1]), silent)
print(time.perf_counter() - start, sum(trace.table(n).height for n in ("ops", "calls", "ranges")))
"""


def measured(program: str, path: Path) -> tuple[float, float, float]:
    """Return seconds, CPU seconds and peak resident MiB of a program in a fresh process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    peak_kib = [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            peak_kib[0] = max(peak_kib[0], resident_kib(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = process.communicate()
    done.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"the measured program failed with {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return float(output.split()[0]), cpu, peak_kib[0] / 1024


def resident_kib(pid: int) -> int:
    """Return the summed resident size of a process and all its descendants, in KiB."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    own = re.search(r"VmRSS:\s+(\d+)", status)
    return (int(own[1]) if own else 0) + sum(resident_kib(int(child)) for child in children)


def spread(values: Sequence[float], unit: str) -> str:
    """Return the median and the range as text."""
    return f"{statistics.median(values):.4g} {unit} ({min(values):.4g} to {max(values):.4g})"


def main() -> None:
    """Make the file, measure, print, delete the file."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", nargs="?", type=Path, default=ROOT / ".bench")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--gigabytes", type=float, default=0.92)
    arguments.add_argument("--keep", action="store_true", help="leave the large file there")
    options = arguments.parse_args()
    if not TRACE.exists():
        raise SystemExit(
            f"{TRACE}: not there; this measures on a real trace published with TraceLens, in a "
            "folder that TRACEKIT_REAL_TRACES may name."
        )
    if options.rounds < 3:
        arguments.error("a median needs at least 3 rounds")
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "kineto_large.json"
    repeats = make_large_file(path, int(options.gigabytes * 1e9))
    print(f"{path.stat().st_size / 1e9:.2f} GB, {repeats} repeats of {TRACE.name}")
    try:
        status = report(path, options.rounds)
    finally:
        if not options.keep:
            path.unlink()
    sys.exit(status)


def report(path: Path, rounds: int) -> int:
    """Measure both readers alternately, print medians, spread and limits, return the status."""
    programs = {"reference": REFERENCE, "tracekit": OURS}
    runs: dict[str, list[tuple[float, ...]]] = {name: [] for name in programs}
    path.read_bytes()  # into the page cache, for both alike
    for _ in range(rounds):
        for name, program in programs.items():
            runs[name].append(measured(program, path))
    medians = {}
    for name, measurements in runs.items():
        columns = list(zip(*measurements, strict=True))
        medians[name] = [statistics.median(column) for column in columns]
        texts = map(spread, columns, ("s", "s CPU", "MiB peak"))
        print(f"{name:>10}: {', '.join(texts)}, n={rounds}")
    ratios = [o / r for o, r in zip(medians["tracekit"], medians["reference"], strict=True)]
    print(f"CPU time of tracekit / reference: {ratios[1]:.2f}")
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"polars {pl.__version__}, load {os.getloadavg()[0]:.1f}"
    )
    return exit_status(
        [
            Limit("time of tracekit / reference", ratios[0], TIME_PER_REFERENCE, " ×"),
            Limit("peak memory of tracekit / reference", ratios[2], MEMORY_PER_REFERENCE, " ×"),
        ]
    )


if __name__ == "__main__":
    main()
