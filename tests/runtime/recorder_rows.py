"""One small recording, filled row by row as the virtual device fills it."""

import sqlite3
from contextlib import closing

from instrumented_runtime.recorder import Recorder
from instrumented_runtime.recorder.layout import API_NUMBERS

ENVIRONMENT = {"ROCPROF_KERNEL_TRACE": "1", "ROCPROF_HIP_RUNTIME_API_TRACE": "1"}
BUFFER, STREAM, EVENT, EXECUTABLE = 0x7F00_0000_1000, 0x5000, 0x7700, 0x9000


def call(recorder, number, api, start, end, *arguments):
    arguments += (0,) * (5 - len(arguments))
    recorder.rows["calls"].extend((number, 1, API_NUMBERS[api], start, end, *arguments))


def small_recording(directory, **more):
    """Record ten calls and markers, three kernels, three copies and a pair of allocations."""
    recorder = Recorder(directory, environment=ENVIRONMENT, command="serve --tiny", **more)
    recorder.stream(1, "Stream 0")
    recorder.queue(1, "Queue 0")
    gemm, softmax = recorder.kernel("gemm<4,float>"), recorder.kernel("softmax")
    rows = recorder.rows
    call(recorder, 1, "hipMalloc", 100, 150, BUFFER, 4096)
    rows["allocations"].extend((1, 0, BUFFER, 4096, 0, 105, 145))
    call(recorder, 2, "hipStreamCreateWithPriority", 160, 170, STREAM, 1, 0)
    call(recorder, 3, "hipMemcpyAsync", 180, 200, BUFFER, 0x1000, 4096, 1, STREAM)
    rows["copies"].extend((3, 1, BUFFER, 0x1000, 4096, 1, 205, 255))
    call(recorder, 5, "hipLaunchKernel", 220, 230, gemm, 4, 256, 0, STREAM)
    call(recorder, 6, "hipGraphLaunch", 240, 260, EXECUTABLE, 0)
    rows["dispatches"].extend((6, softmax, 1, 0, 280, 290, 1, 64))
    rows["dispatches"].extend((6, gemm, 1, 0, 290, 350, 4, 256))
    rows["dispatches"].extend((5, gemm, 1, 1, 256, 276, 4, 256))
    rows["markers"].extend((7, 1, recorder.text('token "7"'), 300, 300))
    call(recorder, 8, "hipEventQuery", 310, 310, EVENT)
    call(recorder, 9, "hipMemcpy", 320, 330, 0x3000, 0x1000, 8, 0)
    rows["copies"].extend((9, 0, 0x3000, 0x1000, 8, 0, 322, 328))
    call(recorder, 10, "hipMemcpy", 340, 390, 0x3000, BUFFER, 8, 2)
    rows["copies"].extend((10, 2, 0x3000, BUFFER, 8, 0, 360, 380))
    rows["markers"].extend((4, 1, recorder.text("step 1"), 210, 400))
    call(recorder, 11, "hipFree", 420, 440, BUFFER)
    rows["allocations"].extend((11, 1, BUFFER, 4096, 0, 425, 435))
    return recorder


def query(path, sql):
    """Return the rows of a query of a file that nobody writes."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        return connection.execute(sql).fetchall()
