"""Host ranges: markers, operators, and the Python frames around calls that can block."""

import polars as pl

from tracekit.intervals import with_parents

_CAN_BLOCK = ("event_sync", "stream_sync", "device_sync", "copy")


def ranges_of(ranges: pl.DataFrame, calls: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the `ranges` table and how many Python frames were left out of it.

    What a reader asks the frames is who called the blocking call, so those that hold one are kept.
    """
    is_frame = pl.col("section") == "frame"
    frames = ranges.filter(is_frame)
    kept = _holding(frames, calls.filter(pl.col("kind").is_in(_CAN_BLOCK)))
    rows = (
        pl.concat([ranges.filter(~is_frame), kept])
        .sort("start_ns", pl.col("end_ns").neg(), maintain_order=True)
        .with_row_index("range_id")
        .select(
            pl.col("range_id").cast(pl.Int64),
            "process_id",
            "start_ns",
            "end_ns",
            kind=pl.col("section").cast(pl.String),
            thread_id="tid",
            text=pl.col("name").cast(pl.String),
        )
    )
    return with_parents(rows, ["process_id", "thread_id"]), len(frames) - len(kept)


def _holding(frames: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the frames during which a call of their thread began."""
    # A call whose thread is not known is in no frame.
    placed = calls.select("process_id", "tid", "start_ns").drop_nulls("tid")
    threads = placed.partition_by("process_id", "tid", as_dict=True)
    held = [frames.clear()]
    for (process, thread), inside in threads.items():
        of_thread = frames.filter(
            pl.col("process_id").eq_missing(pl.lit(process)) & (pl.col("tid") == thread)
        )
        starts = inside["start_ns"].sort()
        before = starts.search_sorted(of_thread["start_ns"], side="left")
        until = starts.search_sorted(of_thread["end_ns"], side="left")
        held.append(of_thread.filter(until > before))
    return pl.concat(held)
