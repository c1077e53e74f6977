"""What the virtual device spools: rows of 64-bit integers per table, and the HIP calls it makes."""

from dataclasses import dataclass
from typing import Literal

ArgumentForm = Literal["pointer", "number", "dimensions", "direction", "function"]


@dataclass(frozen=True, slots=True)
class Api:
    """One HIP call: its name, and its arguments as (name, C type, form), at most five."""

    name: str
    arguments: tuple[tuple[str, str, ArgumentForm], ...] = ()


_STREAM: tuple[str, str, ArgumentForm] = ("stream", "ihipStream_t*", "pointer")
_EVENT: tuple[str, str, ArgumentForm] = ("event", "ihipEvent_t*", "pointer")
_COPY: tuple[tuple[str, str, ArgumentForm], ...] = (
    ("dst", "void*", "pointer"),
    ("src", "void const*", "pointer"),
    ("sizeBytes", "unsigned long", "number"),
    ("kind", "hipMemcpyKind", "direction"),
)

# A call's `api` is its place here. A `function` is the number of a kernel; `dimensions` are the
# blocks or threads in x.
APIS = (
    Api(
        "hipLaunchKernel",
        (
            ("function_address", "void const*", "function"),
            ("numBlocks", "rocprofiler_dim3_t", "dimensions"),
            ("dimBlocks", "rocprofiler_dim3_t", "dimensions"),
            ("sharedMemBytes", "unsigned long", "number"),
            _STREAM,
        ),
    ),
    Api("hipGraphLaunch", (("graphExec", "hipGraphExec*", "pointer"), _STREAM)),
    Api("hipMemcpy", _COPY),
    Api("hipMemcpyAsync", (*_COPY, _STREAM)),
    Api("hipEventCreateWithFlags", (_EVENT, ("flags", "unsigned int", "number"))),
    Api("hipEventRecord", (_EVENT, _STREAM)),
    Api("hipStreamWaitEvent", (_STREAM, _EVENT, ("flags", "unsigned int", "number"))),
    Api("hipEventQuery", (_EVENT,)),
    Api("hipEventSynchronize", (_EVENT,)),
    Api("hipStreamSynchronize", (_STREAM,)),
    Api("hipDeviceSynchronize"),
    Api(
        "hipStreamCreateWithPriority",
        (_STREAM, ("flags", "unsigned int", "number"), ("priority", "int", "number")),
    ),
    Api("hipMalloc", (("ptr", "void**", "pointer"), ("size", "unsigned long", "number"))),
    Api("hipFree", (("ptr", "void*", "pointer"),)),
    Api(
        "hipHostMalloc",
        (
            ("ptr", "void**", "pointer"),
            ("size", "unsigned long", "number"),
            ("flags", "unsigned int", "number"),
        ),
    ),
    Api("hipStreamBeginCapture", (_STREAM, ("mode", "hipStreamCaptureMode", "number"))),
    Api("hipStreamEndCapture", (_STREAM, ("pGraph", "ihipGraph**", "pointer"))),
    Api("hipGraphInstantiate", (("pGraphExec", "hipGraphExec**", "pointer"),)),
)
API_NUMBERS = {api.name: number for number, api in enumerate(APIS)}

DIRECTIONS = ("HostToHost", "HostToDevice", "DeviceToHost", "DeviceToDevice")

# Rows are 64-bit integers in this order. Ids: a call's is its number from 1 in order of begin; a
# graph's kernels all carry the call that launched it. Threads count from 1, the main thread.
TABLES: dict[str, tuple[str, ...]] = {
    "calls": ("call", "thread", "api", "start", "end", "a0", "a1", "a2", "a3", "a4"),
    "dispatches": ("call", "kernel", "queue", "stream", "start", "end", "blocks", "threads"),
    "copies": ("call", "direction", "dst", "src", "bytes", "stream", "start", "end"),
    # `kind` 0 allocates, 1 frees.
    "allocations": ("call", "kind", "address", "bytes", "stream", "start", "end"),
    # A marker of no length is an instant (roctxMarkA), else a range (roctxThreadRangeA).
    "markers": ("call", "thread", "text", "start", "end"),
}
