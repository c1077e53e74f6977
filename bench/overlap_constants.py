"""Fits the constants of the table `s3`, and prints what they predict beside what was published.

    python bench/overlap_constants.py [--forks-per-layer 1.512]

Another number of packets per fork and join is another price of both. Newton's method: as many
constants as figures, so that all of these are met but for rounding. Exits 1 when they are not.
"""

import argparse
import sys
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from instrumented_runtime.bench import s3
from instrumented_runtime.bench.published import OVERLAP, PROFILE_CONCURRENCY, PROFILE_OFF

STEPS = 5
NEAR = 1e-4
Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Constant:
    """One to be fitted: where it begins, and by how much it is moved to see what it does."""

    name: str
    start: float
    move: float


# A nanosecond is the least by which a kernel or a gap can differ.
CONSTANTS = (
    Constant("device_scale", 0.7, 1e-3),
    Constant("growth", 0.047, 1e-4),
    Constant("exponent", 1.13, 1e-3),
    Constant("compressor_scale", 1.0, 2e-2),
    Constant("graph_dispatch_ns", 1_700, 20),
)


def model_of(values: Float64s, forks_per_layer: float) -> s3.Model:
    """Return the model with these constants, in the order of `CONSTANTS`."""
    *of_costs, gap_ns = (float(value) for value in values)
    named = {constant.name: value for constant, value in zip(CONSTANTS, of_costs, strict=False)}
    return replace(
        s3.MODEL,
        costs=s3.OverlapCosts(**named),  # type: ignore[arg-type]
        graph_dispatch_ns=round(gap_ns),
        forks_per_layer=forks_per_layer,
    )


def misses(model: s3.Model) -> Float64s:
    """Return by what share the figures are missed that the constants are fitted to."""
    known = {one.concurrency: one for one in OVERLAP}
    off = {batch: model.run(batch, is_on=False).cycle_ms for batch in s3.FITTED_OFF}
    on = model.run(1, is_on=True).cycle_ms
    streams = model.profile(PROFILE_CONCURRENCY, is_on=False).streams
    pairs = [(off[batch], known[batch].off_ms) for batch in s3.FITTED_OFF]
    pairs += [
        (on / off[1], 1 + known[1].change_percent / 100),
        (streams.main_busy_ms / streams.wall_ms, PROFILE_OFF.main_busy_ms / PROFILE_OFF.wall_ms),
    ]
    return np.array([ours / published - 1 for ours, published in pairs])


def fitted(forks_per_layer: float) -> tuple[Float64s, Float64s]:
    """Return the constants, and by how much they miss."""
    values = np.array([constant.start for constant in CONSTANTS])
    moves = np.diag([constant.move for constant in CONSTANTS])
    missed = misses(model_of(values, forks_per_layer))
    for _ in range(STEPS):
        if np.abs(missed).max() < NEAR:
            break
        moved = [misses(model_of(values + move, forks_per_layer)) for move in moves]
        slopes = (np.array(moved) - missed).T / moves.diagonal()
        values = values - np.linalg.solve(slopes, missed)
        missed = misses(model_of(values, forks_per_layer))
    return values, missed


def main() -> int:
    """Fit, print, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forks-per-layer", type=float, default=s3.FORKS_PER_LAYER)
    given = parser.parse_args()
    values, missed = fitted(given.forks_per_layer)
    for constant, value in zip(CONSTANTS, values, strict=True):
        print(f"{constant.name:<34}{value:10.6g}")
    rows = s3.rows(lambda _: None, model_of(values, given.forks_per_layer))
    for row in rows:
        if row.published is not None:
            print(f"{row.row:<22}{row.metric:<34}{row.published:10.5g}{row.ours:10.5g}  {row.kind}")
    return 0 if np.abs(missed).max() < NEAR else 1


if __name__ == "__main__":
    sys.exit(main())
