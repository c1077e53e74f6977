"""host-syncs: what each wait of the host for the device costs a step, and what would remain of it.

Every call that device work released held the host for a while. `idle-gaps` says which idle time of
the device such a call owns; here that is put beside how long the call held the host, step by step.
Were the wait in a queue instead, the host would be that much further ahead, so that of the idle
time only what exceeds it remains (`idle_time.host_syncs.by_cycle` has the formula and what it
assumes).

It describes one recording: the interval is of its median, not of what another run would show.
"""

from typing import Any

import polars as pl

from tracekit.analyses import Analysis
from tracekit.bootstrap import CONFIDENCE, MIN_VALUES, median_interval
from tracekit.cycles import RULES, cycles, cycles_inside
from tracekit.findings import Finding, FindingSeverity
from tracekit.idle_time.host_syncs import by_cycle, host_syncs
from tracekit.idle_time.wait_kinds import WAITS, described, wait_kinds
from tracekit.tables import Column, Table, enum_column, id_column, text_column, time_column
from tracekit.units import Unit, format_number

_INTERVAL = f"of a {CONFIDENCE} % interval of that median; null below {MIN_VALUES} steps."

HOST_SYNCS = Table(
    "host-syncs",
    "one call that held the host, at one place, in one kind of step, for one device",
    (
        id_column("device_id", "device", "A device that the process uses.", narrow=True),
        enum_column("wait", WAITS, "What it waited for, or what it does."),
        text_column("call", "The API call."),
        text_column("marker", "Innermost marker around it."),
        text_column("caller", "Innermost Python frame, else operator, around it."),
        enum_column("found_by", RULES, "The rule that found the steps; null outside of any."),
        text_column("kind", "Kind of step; null where steps have none."),
        Column("calls", pl.Int64(), "Calls that device work released.", Unit.COUNT),
        Column("steps", pl.Int64(), "Steps of the kind with such a call.", Unit.COUNT),
        Column("of_steps", pl.Int64(), "All steps of the kind.", Unit.COUNT),
        Column(
            "held_ns",
            pl.Int64(),
            "Summed length of the calls; the same on each device.",
            Unit.DURATION,
        ),
        Column("held_median_ns", pl.Float64(), "Per step with such a call, median.", Unit.DURATION),
        Column(
            "idle_ns",
            pl.Int64(),
            "Idle time of the device that they own: host-blocked in idle-gaps.",
            Unit.DURATION,
        ),
        Column("idle_share", pl.Float64(), "Share of the device's window.", Unit.SHARE),
        Column("idle_median_ns", pl.Float64(), "Per step with such a call, median.", Unit.DURATION),
        Column("exposed_ns", pl.Int64(), "Of idle_ns: host work after the call.", Unit.DURATION),
        Column("exposed_median_ns", pl.Float64(), "Per step, median.", Unit.DURATION),
        Column("exposed_low_ns", pl.Float64(), f"Lower end {_INTERVAL}", Unit.DURATION),
        Column("exposed_high_ns", pl.Float64(), f"Upper end {_INTERVAL}", Unit.DURATION),
        Column(
            "remaining_ns",
            pl.Int64(),
            "Of idle_ns: would remain if all the waits of a step were in-queue.",
            Unit.DURATION,
        ),
        Column("remaining_median_ns", pl.Float64(), "Per step, median.", Unit.DURATION),
        time_column("worst_start_ns", "Where the call begins that owns the most."),
        time_column("worst_end_ns", "Where the last idle time that it owns ends."),
    ),
    answers=("call", "held_ns", "idle_ns", "idle_share", "remaining_ns"),
)
_PLACE = ["device_id", "wait", "call", "marker", "caller"]
_GROUP = [*_PLACE, "found_by", "kind"]

# Below this share of the window an owner is not worth acting on: it is less than what two runs of
# one server differ by.
FINDING_SHARE = 0.05
# A median of fewer steps is one outlier away, and is not told.
MIN_STEPS_TOLD = 5


def host_sync_costs(
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    copies: pl.DataFrame,
    marks: pl.DataFrame,
    ranges: pl.DataFrame,
    windows: pl.DataFrame,
) -> pl.DataFrame:
    """Return the ledger by device, call, kind of wait, place and kind of step, largest first.

    A call belongs to the step of its own thread that is open when it begins, and so does the idle
    time it owns, wherever that lies; to none if the step does not lie wholly inside the host window
    or the call is on another thread. The sum of `idle_ns` of a device is what `idle-gaps` calls
    `host-blocked`, exactly.

    Args:
        ops: As `idle-gaps`.
        calls: As `idle-gaps`.
        copies: As `idle-gaps`, and directions.
        marks: As `idle-gaps`.
        ranges: As `idle-gaps` and `steps`.
        windows: One row per device, and the host's.

    Returns:
        `HOST_SYNCS`. A call that owns nothing on a device has a row there too.
    """
    syncs = host_syncs(ops, calls, copies, marks, ranges, windows)
    if syncs.is_empty():
        return HOST_SYNCS.empty()
    found = cycles_inside(cycles(ranges, ops, calls), windows).with_row_index("cycle")
    found = found.with_columns(pl.col("cycle").cast(pl.Int64))
    kinds = found.select("cycle", "found_by", "kind", cycle_start_ns="start_ns")
    named = (
        by_cycle(syncs, found.drop("cycle"))
        .join(kinds, on="cycle", how="left")
        .join(described(syncs["call_id"], calls, ranges), on="call_id")
        .join(wait_kinds(syncs["call_id"], calls, copies, ranges), on="call_id")
    )
    spans = windows.select("device_id", window_ns=pl.col("end_ns") - pl.col("start_ns"))
    summed = (
        _sums(named)
        .join(_per_step(named), on=_GROUP, how="left", nulls_equal=True)
        .join(
            _all_steps(found, syncs),
            on=["device_id", "found_by", "kind"],
            how="left",
            nulls_equal=True,
        )
        .join(spans, on="device_id", how="left")
        .with_columns(idle_share=pl.col("idle_ns") / pl.col("window_ns"))
        .drop("window_ns")
    )
    order = ["device_id", -pl.col("idle_ns"), -pl.col("held_ns"), *_GROUP[1:]]
    return HOST_SYNCS.conform(summed.sort(order, nulls_last=True))


def _sums(named: pl.DataFrame) -> pl.DataFrame:
    worst = pl.col("owned_ns").arg_max()
    return named.group_by(_GROUP).agg(
        calls=pl.len(),
        held_ns=pl.col("held_ns").sum(),
        idle_ns=pl.col("owned_ns").sum(),
        exposed_ns=pl.col("exposed_ns").sum(),
        remaining_ns=pl.col("remaining_ns").sum(),
        worst_start_ns=pl.col("start_ns").get(worst),
        worst_end_ns=pl.col("until_ns").get(worst),
    )


def _per_step(named: pl.DataFrame) -> pl.DataFrame:
    """Return the medians over the steps that have such a call, and the interval of one of them."""
    steps = (
        named.drop_nulls("cycle")
        .group_by(*_GROUP, "cycle")
        .agg(
            pl.col("cycle_start_ns").first(),
            pl.col("held_ns", "owned_ns", "exposed_ns", "remaining_ns").sum(),
        )
        .sort("cycle_start_ns", "cycle")
    )
    medians = steps.group_by(_GROUP, maintain_order=True).agg(
        pl.len().alias("steps"),
        pl.col("held_ns").median().alias("held_median_ns"),
        pl.col("owned_ns").median().alias("idle_median_ns"),
        pl.col("exposed_ns").median().alias("exposed_median_ns"),
        pl.col("remaining_ns").median().alias("remaining_median_ns"),
        pl.col("exposed_ns"),
    )
    intervals = [median_interval(values.to_numpy()) for values in medians["exposed_ns"]]
    low, high = ([pair and pair[end] for pair in intervals] for end in (0, 1))
    return medians.drop("exposed_ns").with_columns(
        pl.Series("exposed_low_ns", low, pl.Float64),
        pl.Series("exposed_high_ns", high, pl.Float64),
    )


def _all_steps(found: pl.DataFrame, syncs: pl.DataFrame) -> pl.DataFrame:
    """Return how many steps of each kind the processes of each device have."""
    devices = syncs.select("process_id", "device_id").unique()
    return (
        found.join(devices, on="process_id", nulls_equal=True)
        .group_by("device_id", "found_by", "kind")
        .agg(of_steps=pl.len())
    )


def findings(result: pl.DataFrame) -> list[Finding]:
    """Return one finding per place whose calls own idle time that would go with their waits.

    What would go, `idle_ns − remaining_ns`, must be `FINDING_SHARE` of the device's window. The
    idle time is counted, not estimated; medians are told of `MIN_STEPS_TOLD` steps or more.
    """
    gained = 1 - pl.col("remaining_ns") / pl.col("idle_ns")
    largest = pl.col("idle_ns").arg_max()
    owners = (
        result.sort("idle_ns", descending=True, maintain_order=True)
        .group_by(_PLACE, maintain_order=True)
        .agg(
            pl.col("calls", "held_ns", "idle_ns", "idle_share", "exposed_ns", "remaining_ns").sum(),
            *(
                pl.col(name).get(largest)
                for name in (
                    "kind",
                    "steps",
                    "of_steps",
                    "held_median_ns",
                    "exposed_median_ns",
                    "exposed_low_ns",
                    "exposed_high_ns",
                    "remaining_median_ns",
                    "worst_start_ns",
                    "worst_end_ns",
                )
            ),
        )
        .filter(pl.col("idle_ns") > 0, pl.col("idle_share") * gained >= FINDING_SHARE)
    )
    return [_host_blocked(row) for row in owners.iter_rows(named=True)]


# On AMD a wait that is pending in one queue slows the dispatches of the others: where it can, the
# order of one stream should take its place.
_PUBLISH = (
    "Run the scheduler on the forward stream (policy forward-stream), so that stream order takes "
    "the place of the wait; a wait in a stream of its own frees the host too, but may slow what "
    "runs beside it (queue-waits); if the host itself reads what was published, read it a step "
    "later"
)
_ITEM = (
    "Copy the value to pinned memory asynchronously, record an event, and read it a step later, "
    "once the event is done; or keep the value on the device"
)
_COPY = (
    "Copy from pinned memory with an asynchronous copy in the stream that needs the data, so that "
    "the host goes on"
)
_OTHER = (
    "Prepare the next step before this call, or submit to the same stream what needs the result; a "
    "wait in another stream frees the host too, but may slow what runs beside it (queue-waits)"
)
_ADVICE = {"publish-event": _PUBLISH, "item": _ITEM, "copy": _COPY}
_VERIFY = (
    "record again and compare this ledger and the steps: tracekit report TRACE --only host-syncs "
    "--only steps"
)


def _host_blocked(row: dict[str, Any]) -> Finding:
    place = row["caller"] or row["marker"]
    where = f"{row['call']} in {place!r}" if place else row["call"]
    return Finding(
        code=f"host-blocked.{row['wait']}",
        severity=FindingSeverity.WARNING,
        message=(
            f"Device {row['device_id']} was idle {format_number(row['idle_ns'], Unit.DURATION)} "
            f"({format_number(row['idle_share'], Unit.SHARE)} of the window) because {where} held "
            f"the host until the device was done, and the next work was prepared only afterwards"
            + _of_a_step(row)
        ),
        evidence={name: row[name] for name in row if name != "wait"},
        advice=f"{_ADVICE.get(str(row['wait']), _OTHER)}; {_VERIFY}",
        span_ns=(row["worst_start_ns"], row["worst_end_ns"]),
    )


def _of_a_step(row: dict[str, Any]) -> str:
    if (row["steps"] or 0) < MIN_STEPS_TOLD:
        return ""
    exposed, remaining = (
        format_number(row[name], Unit.DURATION)
        for name in ("exposed_median_ns", "remaining_median_ns")
    )
    return (
        f": {exposed} of host work exposed per {row['kind'] or 'step'}, median of {row['steps']}; "
        f"without the wait {remaining} of a step's idle time would remain"
    )


ANALYSIS = Analysis(
    name="host-syncs",
    question="What does each wait of the host for the device cost a step, and what would remain?",
    table=HOST_SYNCS,
    compute=host_sync_costs,
    needs=("ops", "calls"),
    findings=findings,
)
