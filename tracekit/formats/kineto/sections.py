"""Kineto's event categories, named once: which part of the trace each belongs to."""

from functools import cache

import polars as pl

DEVICE_WORK = ("kernel", "copy", "fill")
HOST_CALLS = ("runtime", "driver")
SYNCHRONISATION = ("sync", "event")
HOST_RANGES = ("marker", "operator", "frame")
SECTIONS = pl.Enum((*DEVICE_WORK, *HOST_CALLS, *SYNCHRONISATION, *HOST_RANGES))

# Lower case: the tensorboard plug-in of 2021 wrote them capitalised and without "gpu_" or "cpu_".
_BY_CATEGORY = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "fill",
    "memset": "fill",
    "runtime": "runtime",
    "driver": "driver",
    "cuda_sync": "sync",
    "cuda_event": "event",
    "user_annotation": "marker",
    "cpu_op": "operator",
    "operator": "operator",
    "python_function": "frame",
}


@cache
def section_of(category: str) -> str | None:
    """Return the section of a category, None where no table has a place for it.

    HIP calls have the category `cuda_runtime`; other back ends put their own name before
    `_runtime` and `_driver`.
    """
    name = category.lower()
    for level in HOST_CALLS:
        if name.endswith(f"_{level}"):
            return level
    return _BY_CATEGORY.get(name)
