"""Host side: regions and zero-length samples become calls and ranges."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import polars as pl

from tracekit.formats.rocpd.database import Capture
from tracekit.formats.rocpd.events import ORIGINS, Events, Step, Texts
from tracekit.formats.rocpd.identity import Identity
from tracekit.formats.rocpd.row_index import RowIndex, looked_up
from tracekit.formats.rocpd.stacking import stacked
from tracekit.intervals import with_parents
from tracekit.tables.activity import CALL_KINDS

_ROW = {
    "process_id": pl.Int32(),
    "thread_id": pl.Int64(),
    "name": pl.Categorical(),
    "kind": pl.Enum(CALL_KINDS),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "correlation_id": pl.Int64(),
    "event_id": pl.Int64(),
    "origin": ORIGINS,
}
_RANGE_KINDS = {"marker": "marker", "operator": "operator", "frame": "frame"}


@dataclass(frozen=True)
class HostRows:
    """What the host did.

    Attributes:
        calls: HIP and HSA calls with `call_id` (the row number), `event_id` and `origin`.
        ranges: Everything else that is a range, with `event_id` and `name`.
        clamped: Rows whose end was before their start.
        unnamed: Calls whose name the file does not hold (zero-length ones).
        untimed: Rows without a usable start or end, left out.
        skipped: Rows of categories that are neither calls nor ranges (page faults and the like).
    """

    calls: pl.DataFrame
    ranges: pl.DataFrame
    clamped: int
    unnamed: int
    untimed: int
    skipped: int


def read_host_rows(
    capture: Capture, identity: Identity, texts: Texts, events: Events, step: Step
) -> HostRows:
    """Read `rocpd_region` and `rocpd_sample`."""
    calls, ranges, clamped, untimed, skipped = [], [], 0, 0, 0
    regions = _regions(capture, identity, texts, events, step)
    for found in chain(regions, _samples(capture, identity, texts, events)):
        part = found.drop_nulls(["start_ns", "end_ns"])
        untimed += found.height - part.height
        clamped += int(part["clamped"].sum())
        is_call = part["origin"].is_in(["hip", "hsa"])
        if is_call.all():
            calls.append(part)
            continue
        calls.append(part.filter(is_call))
        others = part.filter(~is_call)
        ranges.append(others.filter(pl.col("origin") != "other"))
        skipped += others.height - ranges[-1].height
    whole = stacked(calls, _ROW).with_row_index("call_id")
    return HostRows(
        whole.with_columns(pl.col("call_id").cast(pl.Int64)),
        stacked(ranges, _ROW),
        clamped,
        whole["name"].null_count(),
        untimed,
        skipped,
    )


def _regions(
    capture: Capture, identity: Identity, texts: Texts, events: Events, step: Step
) -> Iterator[pl.DataFrame]:
    columns = ["name_id", "event_id", "start", "end", "tid"]
    if identity.has_many_processes:
        columns.append("pid")
    for part in capture.slices("rocpd_region", columns):
        step(part.height, "rocpd_region")
        known = _with_null(part, ["name_id", "event_id", "tid", "pid"])
        names = texts.index.rows(known["name_id"])
        yield known.select(
            identity.process_of(known["pid"]).alias("process_id"),
            identity.thread_of(known["tid"]).alias("thread_id"),
            texts.names.gather(names).alias("name"),
            texts.kinds.gather(names).alias("kind"),
            pl.col("start").alias("start_ns"),
            pl.when(pl.col("end") < pl.col("start")).then("start").otherwise("end").alias("end_ns"),
            events.stack_of(known["event_id"]).alias("correlation_id"),
            "event_id",
            _origin(texts, events, known["event_id"], names).alias("origin"),
            (pl.col("end") < pl.col("start")).alias("clamped"),
        )


def _samples(
    capture: Capture, identity: Identity, texts: Texts, events: Events
) -> Iterator[pl.DataFrame]:
    """Yield samples of calls and marks; samples of counters are left to `counters`.

    A call that began and ended on one tick is a sample on a track, and the track is named by the
    category: the name of such a call is not in the file.
    """
    tracks = pl.DataFrame(
        capture.rows("rocpd_track", ["id", "pid", "tid", "name_id"]),
        schema=dict.fromkeys(("id", "pid", "tid", "name_id"), pl.Int64),
        orient="row",
    )
    index = RowIndex(tracks["id"])
    is_counter = pl.lit(bool(capture.last_row_id("rocpd_pmc_event")))
    for part in capture.slices("rocpd_sample", ["track_id", "timestamp", "event_id"]):
        known = _with_null(part, ["track_id", "event_id"])
        track = (
            tracks[index.rows(known["track_id"])] if tracks.height else tracks.clear(part.height)
        )
        names = texts.index.rows(track["name_id"])
        categories = looked_up(texts.index, events.category_of(known["event_id"]), texts.names)
        is_category = (
            texts.names.gather(names).cast(pl.String).eq_missing(categories.cast(pl.String))
        )
        named = names.set(is_category, None)
        yield known.select(
            identity.process_of(track["pid"]).alias("process_id"),
            identity.thread_of(track["tid"]).alias("thread_id"),
            texts.names.gather(named).alias("name"),
            texts.kinds.gather(named).fill_null("other").alias("kind"),
            pl.col("timestamp").alias("start_ns"),
            pl.col("timestamp").alias("end_ns"),
            events.stack_of(known["event_id"]).alias("correlation_id"),
            "event_id",
            _category_origin(texts, events, known["event_id"]).alias("origin"),
            pl.lit(value=False).alias("clamped"),
        ).filter(~is_counter | (pl.col("origin") != "other"))


def _origin(texts: Texts, events: Events, event_ids: pl.Series, names: pl.Series) -> pl.Series:
    if not events.categories.count():
        return texts.name_origins.gather(names).fill_null("other")
    return _category_origin(texts, events, event_ids)


def _category_origin(texts: Texts, events: Events, event_ids: pl.Series) -> pl.Series:
    origins = looked_up(texts.index, events.category_of(event_ids), texts.origins)
    return origins.fill_null("other")


def _with_null(part: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    absent = [name for name in names if name not in part.columns]
    return part.with_columns(pl.lit(None, pl.Int64).alias(name) for name in absent)


def ranges_frame(capture: Capture, texts: Texts, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the `ranges` table; a marker's text is in the JSON of its event."""
    messages = _messages(capture, texts, rows.filter(pl.col("origin") == "marker")["event_id"])
    frame = (
        rows.sort("start_ns", maintain_order=True)
        .join(messages, on="event_id", how="left", maintain_order="left")
        .with_row_index("range_id")
        .select(
            pl.col("range_id").cast(pl.Int64),
            pl.col("origin").cast(pl.String).replace_strict(_RANGE_KINDS).alias("kind"),
            "process_id",
            "thread_id",
            pl.coalesce("message", pl.col("name").cast(pl.String)).alias("text"),
            "start_ns",
            "end_ns",
        )
    )
    return with_parents(frame, ["process_id", "thread_id"])


def _messages(capture: Capture, texts: Texts, event_ids: pl.Series) -> pl.DataFrame:
    schema = {"event_id": pl.Int64, "extdata": pl.String}
    rows: list[tuple[object, ...]] = []
    if event_ids.count() and capture.has("rocpd_event", "category_id", "extdata"):
        # The writer puts the events of one kind together: a range of ids is a small part.
        categories = ", ".join(map(str, texts.ids_of(capture, "marker")))
        near = f"id BETWEEN {event_ids.min()!s} AND {event_ids.max()!s}"
        where = f"{near} AND category_id IN ({categories})"
        rows = capture.rows("rocpd_event", ["id", "extdata"], where)
    table = pl.DataFrame(rows, schema=schema, orient="row")
    return table.select("event_id", message=pl.col("extdata").str.json_path_match("$.message"))
