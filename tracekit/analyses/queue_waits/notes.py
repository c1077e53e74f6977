"""What the result of queue-waits means: when it is worth acting on, and what it cannot tell."""

from typing import Any

import polars as pl

from tracekit.analyses.queue_waits.comparison import MIN_DISPATCHES
from tracekit.analyses.queue_waits.resampling import ends_of
from tracekit.findings import Finding, FindingSeverity
from tracekit.tables.notes import Note, Severity
from tracekit.units import Unit, format_number

# A ratio counts when its whole interval is this far beyond what the kernels themselves differ.
MARGIN = 0.02
MIN_ADDED_SHARE = 0.01
_ADVICE = (
    "Run what waits on the stream that records the event (the scheduler on the forward stream), so "
    "that stream order satisfies the wait, or let the host wait; then record again and compare: "
    "tracekit report NEW --only queue-waits --against OLD"
)
_REASONS = {
    "too-few": "too few dispatches or cycles on a side",
    "kernels-differ": "the kernels themselves take another time on the other side",
    "not-in-other": "the other trace has none such without a pending wait",
    "host-limited": "the host submitted them too late for their cadence to be the device's",
}
_CODES = {
    "graph": "queue-wait.pending-during-graph",
    "kernels": "queue-wait.pending-during-kernels",
}


def findings(result: pl.DataFrame) -> list[Finding]:
    """Return a warning per device whose graphs, and one whose single kernels waits slowed.

    The intervals of their ratios lie above 1 by more than `MARGIN`, also after what their kernels
    themselves differ, and together they add 1 % of the window or more. The worst is named.
    """
    slowed = _measured(result).filter(
        pl.col("ratio_low") > (1 + MARGIN) * pl.max_horizontal("kernel_ratio", 1.0)
    )
    # What the trace itself shows goes before what another shows of the same graph.
    slowed = slowed.sort("without_from").unique(_IDENTITY, keep="first", maintain_order=True)
    whole = ["device_id", "scope"]
    costly = slowed.filter(pl.col("added_share").sum().over(whole) >= MIN_ADDED_SHARE).sort(
        *whole, -pl.col("added_ns"), maintain_order=True
    )
    return [
        _slowed(list(rows.iter_rows(named=True)), result.filter(device_id=device_id))
        for (device_id, _), rows in costly.partition_by(
            whole, as_dict=True, maintain_order=True
        ).items()
    ]


_IDENTITY = ("device_id", "scope", "graph_key", "who", "nodes")


def _measured(result: pl.DataFrame) -> pl.DataFrame:
    return result.filter(pl.col("scope").is_in(list(_CODES)))


def _slowed(rows: list[dict[str, Any]], device: pl.DataFrame) -> Finding:
    worst = rows[0]
    added_ns = sum(row["added_ns"] for row in rows)
    total = format_number(added_ns, Unit.DURATION)
    share = format_number(sum(row["added_share"] for row in rows), Unit.SHARE)
    others = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    message = (
        f"On device {worst['device_id']} {_named(worst)}{others} ran while waits were pending in "
        f"another queue, which added {total} ({share} of the window): dispatches took "
        f"{_between(worst, 'ratio', Unit.RATIO)} as long, "
        f"{_between(worst, 'added_per_dispatch_ns', Unit.DURATION)} more each and "
        f"{_between(worst, 'added_per_cycle_ns', Unit.DURATION)} more a cycle "
        f"({worst['dispatches_with']:,} dispatches in {worst['cycles_with']:,} cycles with, "
        f"{worst['dispatches_without']:,} in {worst['cycles_without']:,} without, from "
        f"{worst['without_from']})"
    )
    lanes = device.filter(pl.col("scope") == "lane", pl.col("waits") > 0)
    (whole,) = device.filter(pl.col("scope") == "device").iter_rows(named=True)
    start_ns = whole["longest_start_ns"]
    return Finding(
        code=_CODES[worst["scope"]],
        severity=FindingSeverity.WARNING,
        message=message,
        evidence={
            **{name: worst[name] for name in _EVIDENCE},
            "added_all_ns": added_ns,
            "waits": whole["waits"],
            "pending_ns": whole["pending_ns"],
            "evidence": ", ".join(sorted(lanes["evidence"].cast(pl.String).unique().drop_nulls())),
            "longest_pending": lanes["who"][0],
            "longest_pending_streams": lanes["streams"][0],
        },
        advice=_ADVICE,
        span_ns=(start_ns, start_ns + whole["longest_ns"]),
    )


def _named(row: dict[str, Any]) -> str:
    if row["scope"] == "graph":
        return f"graph {row['who']!r} ({row['nodes']:,} ops)"
    return f"kernels launched one by one in {row['who']}"


_EVIDENCE = (
    "device_id",
    "graph_key",
    "who",
    "ratio",
    "ratio_low",
    "ratio_high",
    "added_per_dispatch_ns",
    "added_per_cycle_ns",
    "added_ns",
    "dispatches_with",
    "dispatches_without",
    "cycles_with",
    "cycles_without",
    "without_from",
)


def _between(row: dict[str, Any], name: str, unit: Unit) -> str:
    value, low, high = (format_number(row[column], unit) for column in (name, *ends_of(name)))
    return f"{value} [{low}, {high}]"


def caveats(result: pl.DataFrame, ops: pl.DataFrame) -> list[Note]:
    """Say what cannot be compared and why, and how sure the times of waits are."""
    found = [*_uncompared(_measured(result)), *_harmless(result), *_uncertain(result)]
    lanes = result.filter(pl.col("scope") == "lane", pl.col("waits") > 0)
    if lanes.filter(pl.col("evidence") == "inferred").height:
        message = (
            "Waits are inferred from the arguments of calls: when they were pending on the device "
            "is worked out from the ops around them"
        )
        found.append(_note("inferred", Severity.INFO, message))
    if lanes.height and ops["queue_id"].null_count() == ops.height:
        message = (
            "The trace names streams but no hardware queues: streams stand for them, and a wait "
            "between two streams that share a queue costs nothing"
        )
        found.append(_note("streams-as-queues", Severity.NOTICE, message))
    return found


def _uncompared(measured: pl.DataFrame) -> list[Note]:
    # Every side stream has some kernels: lanes with few are in the table, but not worth a note.
    is_worth = (pl.col("scope") == "graph") | (pl.col("dispatches_with") >= MIN_DISPATCHES)
    left = measured.filter(pl.col("status") == "not identifiable", is_worth)
    notes = []
    one_sided = left.filter(pl.col("reason") == "one-sided")
    if one_sided.height:
        most = one_sided.sort(-pl.col("dispatches_with")).row(0, named=True)
        message = (
            "Not identifiable: what ran here always had a wait pending in another queue (most "
            f"dispatches: {_named(most)}), so this trace alone cannot say what that costs. Take "
            "the other side from a trace of the same program without such waits: tracekit report "
            "TRACE --only queue-waits --against OTHER"
        )
        notes.append(_note("not-identifiable", Severity.NOTICE, message, one_sided.height))
    for reason, why in _REASONS.items():
        found = left.filter(pl.col("reason") == reason)
        if found.height:
            message = f"{_kinds(found)} beside pending waits that cannot be compared: {why}"
            notes.append(_note(reason, Severity.INFO, message, found.height))
    return notes


def _kinds(rows: pl.DataFrame) -> str:
    scopes = rows["scope"].cast(pl.String).unique().to_list()
    names = {"graph": "Graphs", "kernels": "Kernels launched one by one in a queue"}
    return " and ".join(names[scope] for scope in sorted(scopes)).replace("and K", "and k")


def _harmless(result: pl.DataFrame) -> list[Note]:
    """Say what pending waits cost where it is compared and not worth a finding."""
    warned = {(found.code, found.evidence["device_id"]) for found in findings(result)}
    quiet = [
        row
        for row in _measured(result).filter(status="compared").iter_rows(named=True)
        if (_CODES[row["scope"]], row["device_id"]) not in warned
    ]
    if not quiet:
        return []
    most = max(quiet, key=lambda row: row["dispatches_with"])
    message = (
        "Compared with and without pending waits, dispatches of what had most of them, "
        f"{_named(most)}, took {_between(most, 'ratio', Unit.RATIO)} as long, "
        f"{_between(most, 'added_per_dispatch_ns', Unit.DURATION)} more each"
    )
    return [_note("compared", Severity.INFO, message, len(quiet))]


def _uncertain(result: pl.DataFrame) -> list[Note]:
    devices = result.filter(pl.col("scope") == "device")
    unknown, known = devices.select(pl.col("waits_unknown").sum(), pl.col("waits").sum()).row(0)
    if not unknown:
        return []
    message = "Waits of streams for events whose time the trace does not say"
    message += (
        "; dispatches that they may have slowed are left out"
        if known
        else ": what pending waits cost cannot be known from it (to know, record with "
        "rocprofv3, or mark records and waits, docs/markers.md)"
    )
    return [_note("waits-unknown", Severity.NOTICE, message, unknown)]


def _note(problem: str, severity: Severity, message: str, count: int = 1) -> Note:
    return Note(f"queue-waits.{problem}", severity, f"{message}.", count)
