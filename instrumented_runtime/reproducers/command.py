"""Reproduce one of the problems and its fixes: see `--help`."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from instrumented_runtime.console import print_lines, say
from instrumented_runtime.devices import MemoryFault
from instrumented_runtime.recorder import RecorderError
from instrumented_runtime.reproducers import (
    Outcome,
    Reproducer,
    host_sync_bubble,
    pending_wait,
    split_k_clobber,
    stranded_requests,
    unordered_plan,
    unordered_plan_serving,
)
from instrumented_runtime.reproducers.lab import Lab

REPRODUCERS = {
    one.name: one
    for one in (
        host_sync_bubble.REPRODUCER,
        pending_wait.REPRODUCER,
        split_k_clobber.REPRODUCER,
        stranded_requests.REPRODUCER,
        unordered_plan.REPRODUCER,
        unordered_plan_serving.REPRODUCER,
    )
}


def main() -> int:
    """Run one reproducer; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m instrumented_runtime.reproducers",
        description="Reproduce a problem and its fixes side by side. Exit status: 0 if every fixed "
        "mode is clean, 1 if one is not, 2 for bad usage.",
        epilog="\n".join(f"{one.name:<24}{one.shows}" for one in REPRODUCERS.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", choices=[*REPRODUCERS], help="one of those below")
    parser.add_argument("--device", choices=["virtual", "torch"], default="virtual")
    parser.add_argument(
        "--trace", type=_folder, metavar="DIR", help="also record each mode, in DIR/<mode>/"
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="of unordered-plan-serving: all four streams of requests to their ends, on all cores; "
        "not recorded",
    )
    arguments = parser.parse_args()
    reproducer = REPRODUCERS[arguments.name]
    if arguments.device not in reproducer.devices:
        parser.error(f"{reproducer.name} runs on --device {' or '.join(reproducer.devices)} only")
    if arguments.full and (reproducer.run_full is None or arguments.trace):
        of = ", ".join(one.name for one in REPRODUCERS.values() if one.run_full)
        parser.error(f"--full is of {of} only, and not recorded: leave out --full or --trace")
    try:
        lab = Lab(arguments.device, arguments.trace)
        lab.refuse_taken(reproducer.modes(lab))
    except (RuntimeError, ValueError, OSError) as problem:
        parser.error(str(problem))
    full = reproducer.run_full if arguments.full else None
    try:
        outcomes = _run(reproducer, lab, full() if full else reproducer.run(lab))
    except MemoryFault as fault:  # of a mode that has no fault to show
        say(f"{reproducer.name}: {fault}")
        return 1
    except (RecorderError, RuntimeError, OSError, ImportError) as problem:
        parser.error(str(problem))
    if not print_lines(_lines(reproducer, lab, outcomes)):
        return 141
    return int(any(outcome.problem and outcome.is_fixed for outcome in outcomes))


def _folder(text: str) -> Path:
    # `Path` would take it for the current folder.
    if not text:
        raise argparse.ArgumentTypeError("is empty; name a folder")
    return Path(text)


def _run(reproducer: Reproducer, lab: Lab, results: Iterator[Outcome]) -> list[Outcome]:
    outcomes = []
    for outcome in results:
        say(f"{reproducer.name}: {outcome.mode}: {outcome.verdict}")
        if lab.folder is not None:
            say(f"Wrote {lab.folder / outcome.mode}")
        outcomes.append(outcome)
    return outcomes


def _lines(reproducer: Reproducer, lab: Lab, outcomes: list[Outcome]) -> list[str]:
    figures = list(dict.fromkeys(name for outcome in outcomes for name in outcome.figures))
    rows = [["mode", *figures, ""]] + [
        [one.mode, *(one.figures.get(name, "") for name in figures), one.verdict]
        for one in outcomes
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = []
    for mode, *values, verdict in rows:
        told = [value.rjust(width) for value, width in zip(values, widths[1:-1], strict=True)]
        table.append("  ".join([mode.ljust(widths[0]), *told, verdict]).rstrip())
    lines = [f"{reproducer.name}: {reproducer.shows}"]
    if lab.is_model:
        lines.append("On a model of a device: no figure here is a measurement of one.")
    if lab.folder is not None and not lab.is_model:
        lines.append("Recorded, so times hold what the profiler costs.")
    return [*lines, "", *table]
