"""The cost of a pending wait with its interval, by resampling cycles."""

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.bootstrap import CONFIDENCE, RESAMPLES

Floats = npt.NDArray[np.float64]

SEED = 20_260_101
# Of more cycles neighbours are resampled together, which bounds time and memory.
MAX_BLOCKS = 250


def cost(
    with_cycles: pl.DataFrame, without_cycles: pl.DataFrame, *, is_joint: bool
) -> dict[str, float]:
    """Return what dispatches cost with a pending wait over without one.

    Of each cycle and side, its summed cadence is divided by (ratio), or less (difference per
    dispatch), the usual one of the same positions. The figure is the median of that over cycles,
    weighted by dispatches, of the side with over (less) that of the side without, which is close to
    1 (0) and carries its uncertainty into the interval. A few cycles with something else in them
    (a preemption, a page fault) move a median little. Per cycle is per dispatch times the
    dispatches with a pending wait of the cycle that the median one of them is in, so that a cycle
    into which a wait only just reaches does not count for a whole one.
    The interval is the middle 95 % of the same figures over 1,000 resamples of the cycles, drawn in
    runs of n^(1/3) neighbours from a circle as in `bootstrap`, seed fixed. Kernels of one cycle are
    never taken for independent samples.

    Args:
        with_cycles: `cycle`, `dispatches`, `spent_ns`, `usual_ns`, `kernel_ns`, `usual_kernel_ns`,
            one row per cycle, in order.
        without_cycles: The same of the other side.
        is_joint: Both sides are of one trace: a cycle is resampled with both of its sides.

    Returns:
        `kernel_ratio`, and for each of `ratio`, `added_per_dispatch_ns` and `added_per_cycle_ns`
        the figure and the ends of its interval, named by `ends_of`.
    """
    pending, without, copies = _blocks(with_cycles, without_cycles, is_joint=is_joint)
    once = np.ones((1, copies.shape[1]))
    # A block without a side, or a resample without one, gives no number and is left out.
    with np.errstate(invalid="ignore", divide="ignore"):
        figure, resampled = (_cost(pending, without, times) for times in (once, copies))
        kernels = [_median(_kernels(side), side, once)[0] for side in (pending, without)]
    figures = {"kernel_ratio": float(kernels[0] / kernels[1])}
    tail = (100 - CONFIDENCE) / 200
    for name, value in figure.items():
        low, high = np.nanquantile(resampled[name], (tail, 1 - tail))
        ends = zip(ends_of(name), (float(low), float(high)), strict=True)
        figures |= {name: float(value[0]), **dict(ends)}
    return figures


def ends_of(name: str) -> tuple[str, str]:
    """Return the names of the lower and upper end of a figure's interval; its unit stays last."""
    stem = name.removesuffix("_ns")
    unit = name[len(stem) :]
    return f"{stem}_low{unit}", f"{stem}_high{unit}"


def _cost(
    pending: dict[str, Floats], without: dict[str, Floats], copies: Floats
) -> dict[str, Floats]:
    ratio, added = (
        [_median(measure(side), side, copies) for side in (pending, without)]
        for measure in (_ratio, _difference)
    )
    per_dispatch = added[0] - added[1]
    per_cycle = _median(pending["dispatches"] / pending["cycles"], pending, copies)
    return {
        "ratio": ratio[0] / ratio[1],
        "added_per_dispatch_ns": per_dispatch,
        "added_per_cycle_ns": per_dispatch * per_cycle,
    }


def _ratio(side: dict[str, Floats]) -> Floats:
    return side["spent_ns"] / side["usual_ns"]


def _difference(side: dict[str, Floats]) -> Floats:
    return (side["spent_ns"] - side["usual_ns"]) / side["dispatches"]


def _kernels(side: dict[str, Floats]) -> Floats:
    return side["kernel_ns"] / side["usual_kernel_ns"]


def _median(values: Floats, side: dict[str, Floats], copies: Floats) -> Floats:
    """Return the weighted median of each row of copies: blocks weigh dispatches × copies."""
    present = side["dispatches"] > 0
    order = np.flatnonzero(present)[np.argsort(values[present], kind="stable")]
    weights = np.cumsum(copies[:, order] * side["dispatches"][order], axis=1)
    middle = (weights >= weights[:, -1:] / 2).argmax(axis=1)
    return np.where(weights[:, -1] > 0, values[order][middle], np.nan)


def _blocks(
    with_cycles: pl.DataFrame, without_cycles: pl.DataFrame, *, is_joint: bool
) -> tuple[dict[str, Floats], dict[str, Floats], Floats]:
    """Return both sides' sums per block, and how often each resample takes each block."""
    random = np.random.default_rng(SEED)
    if is_joint:
        cycles = np.union1d(with_cycles["cycle"].to_numpy(), without_cycles["cycle"].to_numpy())
        strata = [cycles]
        frames = [(with_cycles, cycles, 0), (without_cycles, cycles, 0)]
    else:
        strata = [with_cycles["cycle"].to_numpy(), without_cycles["cycle"].to_numpy()]
        first = min(len(strata[0]), MAX_BLOCKS)
        frames = [(with_cycles, strata[0], 0), (without_cycles, strata[1], first)]
    counts = [min(len(stratum), MAX_BLOCKS) for stratum in strata]
    copies = np.hstack([_draws(random, count) for count in counts])
    pending, without = (_summed(*frame, copies.shape[1]) for frame in frames)
    return pending, without, copies


def _draws(random: np.random.Generator, count: int) -> Floats:
    """Return how often each of `count` blocks is in each resample."""
    length = round(count ** (1 / 3))
    firsts = random.integers(0, count, (RESAMPLES, -(-count // length), 1))
    drawn = (firsts + np.arange(length)).reshape(RESAMPLES, -1)[:, :count] % count
    places = drawn + count * np.arange(RESAMPLES)[:, None]
    times = np.bincount(places.ravel(), minlength=RESAMPLES * count)
    return times.reshape(RESAMPLES, count).astype(np.float64)


def _summed(
    frame: pl.DataFrame, cycles: npt.NDArray[np.int64], first: int, size: int
) -> dict[str, Floats]:
    """Return the sums of a side per block of neighbouring cycles; blocks count from `first`."""
    places = np.searchsorted(cycles, frame["cycle"].to_numpy())
    blocks = first + places * min(len(cycles), MAX_BLOCKS) // len(cycles)
    sums = {
        name: np.bincount(blocks, frame[name].to_numpy(), size).astype(np.float64)
        for name in frame.columns
        if name not in {"graph", "cycle"}
    }
    return {**sums, "cycles": np.bincount(blocks, minlength=size).astype(np.float64)}
