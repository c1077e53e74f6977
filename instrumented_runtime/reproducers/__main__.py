"""Reproduce one of the problems and its fixes: see `--help`."""

import argparse
import sys
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
        "--trace", type=Path, metavar="DIR", help="also record each mode, in DIR/<mode>/"
    )
    arguments = parser.parse_args()
    reproducer = REPRODUCERS[arguments.name]
    if arguments.device not in reproducer.devices:
        parser.error(f"{reproducer.name} runs on --device {' or '.join(reproducer.devices)} only")
    try:
        lab = Lab(arguments.device, arguments.trace)
    except (RuntimeError, ValueError) as problem:
        parser.error(str(problem))
    try:
        outcomes = _run(reproducer, lab)
    except MemoryFault as fault:  # of a mode that has no fault to show
        say(f"{reproducer.name}: {fault}")
        return 1
    except (RecorderError, RuntimeError, OSError, ImportError) as problem:
        parser.error(str(problem))
    if not print_lines(_lines(reproducer, lab, outcomes)):
        return 141
    return int(any(outcome.problem and outcome.is_fixed for outcome in outcomes))


def _run(reproducer: Reproducer, lab: Lab) -> list[Outcome]:
    outcomes = []
    for outcome in reproducer.run(lab):
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


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
