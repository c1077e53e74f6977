"""Who did the work: which process each event belongs to, and its devices, queues and streams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracekit.formats.kineto.metadata import device_properties, rank
from tracekit.formats.kineto.recording import Recording
from tracekit.formats.kineto.sections import DEVICE_WORK, HOST_CALLS, SYNCHRONISATION

# CUPTI writes "no stream" as -1, older versions as the same bits unsigned.
NO_STREAM = (-1, 0xFFFF_FFFF)
_ROCM_KEYS = ("roctracer_version", "rocprofiler-sdk_version", "hip_runtime_version")
_CUDA_KEYS = ("cupti_version", "cuda_runtime_version", "cuda_driver_version")


@dataclass(frozen=True)
class Platform:
    """Which stack recorded the file, and what that makes of its numbers.

    Attributes:
        is_rocm: HIP calls and AMD devices.
        has_streams: `stream` is a stream; else it is the hardware queue.
        counts_nodes: `device` counts HSA nodes, processors included, not GPUs (roctracer).
    """

    is_rocm: bool
    has_streams: bool
    counts_nodes: bool


def platform(recording: Recording) -> Platform:
    """Work out the platform from the metadata, or from the rows of a file without any."""
    keys, details = recording.metadata.keys(), recording.details
    work = details.filter(pl.col("section").is_in(DEVICE_WORK))
    if any(key in keys for key in (*_ROCM_KEYS, *_CUDA_KEYS)):
        is_rocm = any(key in keys for key in _ROCM_KEYS)
    else:
        # CUPTI names a context on every device row; HIP rows name what kind of dispatch they are.
        calls = details.filter(pl.col("section").is_in(HOST_CALLS))["name"].cast(pl.String)
        is_rocm = bool(
            calls.str.starts_with("hip").any()
            or (work["context"].is_null().all() and work["kind"].is_not_null().any())
        )
    has_hsa_queue = bool(details["hsa_queue"].is_not_null().any())
    return Platform(
        is_rocm,
        has_streams=not is_rocm or has_hsa_queue,
        counts_nodes=is_rocm and "rocprofiler-sdk_version" not in keys,
    )


def with_processes(recording: Recording) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return details and ranges with `process_id`, and the processes: process_id, pid, rank.

    A file of the profiler is one process. Merged files hold several: a merging tool that writes
    each event's `rank` is believed; otherwise a device's rows belong to the one process whose
    calls they correlate with, and to none (null) where that is ambiguous.
    """
    details, ranges = recording.details, recording.ranges
    if details["pid_raw"].is_not_null().any():
        return _by_rank(details, ranges)
    pids = _host_pids(details, ranges)
    if len(pids) <= 1:
        only = pl.lit(0, pl.Int32).alias("process_id")
        pid = pids[0] if len(pids) else None
        of_file = {"process_id": [0], "pid": [pid], "rank": [rank(recording.metadata)]}
        processes = pl.DataFrame(of_file)
        return details.with_columns(only), ranges.with_columns(only), processes
    processes = pl.DataFrame({"pid": pids}).with_row_index("process_id")
    return (*_by_pid(details, ranges, processes), processes.with_columns(rank=pl.lit(None)))


def _host_pids(details: pl.DataFrame, ranges: pl.DataFrame) -> Sequence[int]:
    """Python frames do not count: threads that Kineto cannot place have process 0 there."""
    calls = details.filter(pl.col("section").is_in(HOST_CALLS))["pid"]
    pids = calls.append(ranges.filter(pl.col("section") != "frame")["pid"])
    found: list[int] = pids.drop_nulls().unique().sort().to_list()
    return found


def _by_rank(
    details: pl.DataFrame, ranges: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    is_call = pl.col("section").is_in(HOST_CALLS)
    processes = (
        details.group_by("rank")
        .agg(pid=pl.col("pid_raw").filter(is_call).drop_nulls().first())
        .sort("rank")
        .with_row_index("process_id")
    )
    of_rank = processes.select("rank", "process_id")
    details = details.join(of_rank, on="rank", how="left", nulls_equal=True, maintain_order="left")
    of_pid = details.filter(is_call).select("pid", "process_id").unique("pid", keep="any")
    return details, ranges.join(of_pid, on="pid", how="left", maintain_order="left"), processes


def _by_pid(
    details: pl.DataFrame, ranges: pl.DataFrame, processes: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    of_pid = processes.select("pid", "process_id")
    is_call = pl.col("section").is_in(HOST_CALLS)
    calls = details.filter(is_call).join(of_pid, on="pid", how="left")
    rest = details.filter(~is_call)
    of_correlation = _sole_owner(calls.filter(pl.col("correlation") > 0), "correlation")
    rest = rest.join(of_correlation, on="correlation", how="left")
    of_lane = _sole_owner(rest.filter(pl.col("process_id").is_not_null()), "pid")
    rest = rest.join(of_lane.rename({"process_id": "by_lane"}), on="pid", how="left")
    rest = rest.with_columns(pl.coalesce("process_id", "by_lane").alias("process_id"))
    details = pl.concat([calls, rest.drop("by_lane")])
    return details, ranges.join(of_pid, on="pid", how="left", maintain_order="left")


def _sole_owner(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    return (
        rows.group_by(key)
        .agg(pl.col("process_id").first(), owners=pl.col("process_id").n_unique())
        .filter(pl.col("owners") == 1)
        .drop("owners")
    )


def with_lanes(details: pl.DataFrame, platform: Platform) -> pl.DataFrame:
    """Return details with `index` of the device and the handles of stream and queue."""
    on_device = pl.col("section").is_in((*DEVICE_WORK, *SYNCHRONISATION))
    lane = pl.coalesce("stream", "tid")
    lane = pl.when(on_device & ~lane.is_in(NO_STREAM)).then(lane)
    return details.with_columns(
        index=pl.when(on_device).then(pl.coalesce("device", "pid")),
        stream_handle=lane if platform.has_streams else pl.lit(None, pl.Int64),
        queue_handle=pl.col("hsa_queue") if platform.has_streams else lane,
        recording_handle=pl.when(~pl.col("wait_on_stream").is_in(NO_STREAM)).then("wait_on_stream"),
    )


def devices(details: pl.DataFrame, platform: Platform, metadata: Mapping[str, Any]) -> pl.DataFrame:
    """Return devices with `process_id`: one row per process and device number.

    `device` of roctracer counts HSA nodes (2 to 9 on a box of 8 GPUs whose properties have ids 0
    to 7), so a name is taken by number only where the number is a GPU's; else only where all
    devices of the file have one name.
    """
    seen = (
        details.filter(pl.col("index").is_not_null())
        .select("process_id", "index")
        .unique()
        .sort("process_id", "index")
        .with_row_index("device_id")
        .with_columns(pl.col("device_id").cast(pl.Int32))
    )
    properties = device_properties(metadata)
    known = properties.select("name", "arch").unique()
    if len(known) == 1:
        return seen.with_columns(
            pl.lit(value).alias(name) for name, value in known.row(0, named=True).items()
        )
    if platform.counts_nodes:
        properties = properties.clear()
    return seen.join(properties, on="index", how="left", maintain_order="left")


def lanes_of(details: pl.DataFrame, handles: Sequence[str], label: str) -> pl.DataFrame:
    """Return distinct lanes: `{label}_id`, process_id, device_id, handle, name.

    Args:
        details: With process_id, device_id and the handle columns.
        handles: Columns that name a lane of this sort.
        label: "stream" or "queue".
    """
    return (
        pl.concat(details.select("process_id", "device_id", handle=name) for name in handles)
        .filter(pl.col("handle").is_not_null())
        .unique()
        .sort("process_id", "device_id", "handle")
        .with_row_index(f"{label}_id")
        .with_columns(
            pl.col(f"{label}_id").cast(pl.Int32),
            name=pl.format(label + " {}", pl.col("handle")),
        )
    )
