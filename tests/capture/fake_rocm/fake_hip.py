"""A stand-in for the HIP runtime: real calls at real times on a device that is a few numbers.

A launch returns at once; its kernel runs after those before it in its stream's queue. A
synchronisation sleeps until the work is done. What happens is told to the profiler in this process,
if there is one.
"""

import ctypes
import os
import socket
import sys
import threading
import time

_FREE_NS = {}
_RECORDED = {}
_numbers = iter(range(1, 1 << 40))


def now_ns():
    """Return the time on the clock that rocprofiler uses."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _tool():
    return sys.modules.get("_fake_rocprofiler")


def _call(name, start_ns, arguments, op=None):
    tool = _tool()
    if tool is not None:
        tool.call(next(_numbers), name, start_ns, now_ns(), arguments, op)


def _enqueue(stream, length_ns):
    start = max(now_ns(), _FREE_NS.get(stream, 0))
    _FREE_NS[stream] = start + length_ns
    return start, start + length_ns


def launch(kernel, stream=0, length_ns=20_000):
    """Launch a kernel on a stream."""
    begin = now_ns()
    start, end = _enqueue(stream, length_ns)
    op = {"kind": "kernel", "name": kernel, "stream": stream, "start": start, "end": end}
    _call("hipLaunchKernel", begin, {"stream": hex(stream)}, op)


def copy_to_device(size, stream=0):
    """Copy bytes from the host, asynchronously, at 10 bytes a nanosecond."""
    begin = now_ns()
    start, end = _enqueue(stream, max(1000, size // 10))
    op = {"kind": "copy", "size": size, "stream": stream, "start": start, "end": end}
    _call("hipMemcpyAsync", begin, {"sizeBytes": str(size), "stream": hex(stream)}, op)


def record(event, stream):
    """Record an event."""
    begin = now_ns()
    _RECORDED[event] = (stream, _FREE_NS.get(stream, begin))
    op = {"kind": "event", "name": "HIP_EVENT_RECORD", "event": event, "stream": stream}
    op |= {"start": begin, "end": begin + 1, "source": stream}
    _call("hipEventRecord", begin, {"event": hex(event), "stream": hex(stream)}, op)


def wait(event, stream):
    """Let a stream wait for an event."""
    begin = now_ns()
    source, done = _RECORDED[event]
    _FREE_NS[stream] = max(_FREE_NS.get(stream, 0), done)
    op = {"kind": "event", "name": "HIP_EVENT_WAIT", "event": event, "stream": stream}
    op |= {"start": begin, "end": max(begin + 1, done), "source": source}
    _call("hipStreamWaitEvent", begin, {"stream": hex(stream), "event": hex(event)}, op)


def synchronize(stream=0):
    """Wait for a stream."""
    begin = now_ns()
    time.sleep(max(0, _FREE_NS.get(stream, 0) - begin) / 1e9)
    _call("hipStreamSynchronize", begin, {"stream": hex(stream)})


def _listen():
    """Wait for a profiler that wants in, as rocprofiler-register's thread does."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"\0fake-rocprofv3-{os.getpid()}")
    server.listen(1)

    def serve():
        ctypes.CDLL(None).prctl(15, b"rocp-bg-attach", 0, 0, 0)
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rw") as lines:
                import json
                import runpy

                request = json.loads(lines.readline())
                start = runpy.run_path(request["agent"])["start"]
                tool = start(request["environment"], attached=True)
                lines.write("attached\n")
                lines.flush()
                lines.readline()
                tool.finalize()
                lines.write("detached\n")
                lines.flush()

    threading.Thread(target=serve, daemon=True).start()


if os.environ.get("ROCP_TOOL_ATTACH") == "1":
    _listen()
