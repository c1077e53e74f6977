"""How long a large rocpd file takes, against SQLite's own scan of the same columns.

    python bench/rocpd.py [--dispatches 5000000] [--rounds 3] [--keep] [FOLDER]

Makes a file with as many kernel dispatches as API calls, an event for each of them, and arguments
for the one call in a hundred that records, waits for or synchronises with an event or copies. Then
these alternate, each in a fresh process:

- scan: `max()` over exactly the columns that the reader selects, by Python's sqlite3: one thread,
  no rows handed out.
- read: the reader, every frame materialised.
- report: `tracekit report FILE --as json -o …`.
- stored: the same of the run directory that `tracekit convert` made, from its stored results.
- remade: the same with `--window 0:`, which is all of it, for which every analysis runs again.

The time of scan and read is the call's own, that of the reports the whole process's. Exits 1 when a
median is beyond its limit.
"""

import argparse
import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from limits import Limit, exit_status
from rocpd_file import GUID, make_file

TRACEKIT = Path(sys.executable).with_name("tracekit")
REPORT_PER_SCAN = 3
REPORT_PEAK_MB = 2000
STORED_PER_SCAN = 1
NEEDED = {
    "rocpd_event": "max(id), max(stack_id), max(category_id)",
    "rocpd_region": "max(name_id), max(event_id), max(start), max(end), max(tid)",
    "rocpd_kernel_dispatch": "max(agent_id), max(kernel_id), max(dispatch_id), max(queue_id), "
    "max(stream_id), max(start), max(end), max(event_id)",
    "rocpd_arg": "max(event_id), max(name), max(value)",
}


def scan(path: Path) -> None:
    """Scan the needed columns with SQLite alone."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    suffix = "_" + GUID.replace("-", "_")
    for table, columns in NEEDED.items():
        connection.execute(f"SELECT {columns} FROM {table}{suffix}").fetchall()


def read(path: Path) -> None:
    """Read the file as tracekit does, every frame materialised."""
    from tracekit.formats import silent
    from tracekit.formats.rocpd import FORMAT

    trace = FORMAT.read(path, silent)
    assert trace.table("ops").height == trace.table("calls").height


def _one(what: str, path: Path) -> None:
    started = time.perf_counter()
    {"scan": scan, "read": read}[what](path)
    print(time.perf_counter() - started)


def _commands(path: Path, run: Path) -> dict[str, list[str | Path]]:
    this = [sys.executable, __file__, "--one"]
    report = [TRACEKIT, "report", "--as", "json", "--force", "-o", run.with_suffix(".json")]
    return {
        "scan": [*this, "scan", path],
        "read": [*this, "read", path],
        "report": [*report, path],
        "stored": [*report, run],
        "remade": [*report, "--window", "0:", run],
    }


def _measured(command: list[str | Path]) -> dict[str, float]:
    """Run a fresh process; return its seconds (its own count if it prints one), CPU and peak."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{output}")
    return {
        "seconds": float(output.split()[-1]) if "--one" in command else seconds,
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss * 1024 / 1e6,
    }


def _medians(what: str, runs: list[dict[str, float]], scan_s: float) -> dict[str, float]:
    """Print one line and return the medians."""
    seconds = sorted(run["seconds"] for run in runs)
    medians = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    print(
        f"{what:6} median {medians['seconds']:6.2f} s  (min {seconds[0]:.2f}, "
        f"max {seconds[-1]:.2f}, n={len(runs)})  cpu {medians['cpu']:.2f} s  "
        f"peak {medians['peak_mb']:,.0f} MB  / scan = {medians['seconds'] / scan_s:.2f}"
    )
    return medians


def report(path: Path, run: Path, rounds: int) -> int:
    """Measure everything alternately, print medians and limits, return the exit status."""
    commands = _commands(path, run)
    runs: dict[str, list[dict[str, float]]] = {what: [] for what in commands}
    for _ in range(rounds):
        for what, command in commands.items():
            runs[what].append(_measured(command))
    json.loads(run.with_suffix(".json").read_bytes())
    print(f"{path.name}: {path.stat().st_size / 1e9:.2f} GB; {platform.platform()}")
    scan_s = statistics.median(one["seconds"] for one in runs["scan"])
    medians = {what: _medians(what, measured, scan_s) for what, measured in runs.items()}
    ratio = {what: median["seconds"] / scan_s for what, median in medians.items()}
    peak_mb = medians["report"]["peak_mb"]
    return exit_status(
        [
            Limit("report / scan", ratio["report"], REPORT_PER_SCAN, " ×"),
            Limit("peak memory of the report", peak_mb, REPORT_PEAK_MB, " MB"),
            Limit("stored report / scan", ratio["stored"], STORED_PER_SCAN, " ×"),
        ]
    )


def main() -> None:
    """Make the file and its run directory, measure, delete them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(".bench"))
    parser.add_argument("--dispatches", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="keep the file")
    parser.add_argument("--one", choices=("scan", "read"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        _one(arguments.one, arguments.folder)
        return
    if arguments.rounds < 3:
        parser.error("a median needs at least 3 rounds")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / f"rocpd-{arguments.dispatches}.db"
    run = path.with_name(f"{path.stem}-run")
    if not path.exists():
        make_file(path, arguments.dispatches)
    subprocess.run([TRACEKIT, "convert", "--force", "-o", run, path], check=True)
    try:
        status = report(path, run, arguments.rounds)
    finally:
        # The run is always made anew: one by other code would hold no usable results.
        shutil.rmtree(run)
        run.with_suffix(".json").unlink(missing_ok=True)
        if not arguments.keep:
            path.unlink()
    sys.exit(status)


if __name__ == "__main__":
    main()
