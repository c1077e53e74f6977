"""The tool library of the fake: records in one process, writes when that ends.

It writes on normal exit (atexit) and in handlers of INT, QUIT, ABRT and TERM, before the handlers of
the application. `os._exit` and KILL leave nothing but the spilled records. Finalising is slow, as
the real one is, and the file grows in place.
"""

import atexit
import ctypes
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import types
import uuid
from pathlib import Path

HANDLED = (signal.SIGINT, signal.SIGQUIT, signal.SIGABRT, signal.SIGTERM)
RECORD_BYTES = 160
ROWS = Path(__file__).resolve().parents[3] / "formats"


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def start(environment, *, attached=False):
    """Put the tool into this process."""
    tool = Tool(dict(environment), attached=attached)
    module = types.ModuleType("_fake_rocprofiler")
    module.call, module.tool = tool.call, tool
    sys.modules["_fake_rocprofiler"] = module
    return tool


class Tool:
    """Records of one process."""

    def __init__(self, environment, *, attached):
        self.environment = environment
        self.start_ns = now_ns()
        self.calls, self.markers, self.open_ranges = [], [], []
        self.is_done = False
        self.lock = threading.RLock()
        self.resumed = "ROCPROF_SELECTED_REGIONS" not in environment
        periods = environment.get("ROCPROF_COLLECTION_PERIOD", "")
        self.periods = [tuple(map(int, p.split(":"))) for p in periods.split(";") if p]
        folder = Path(environment.get("ROCPROF_TMPDIR") or environment["ROCPROF_OUTPUT_PATH"])
        self.spill_folder = folder / ".rocprofv3"
        self.spilled = None
        self._load_roctx()
        os.register_at_fork(after_in_child=self.forget)
        if not attached:
            atexit.register(self.finalize)
            if environment.get("ROCPROF_SIGNAL_HANDLERS") != "0":
                self._take_signals()

    def forget(self):
        """A forked child begins with nothing."""
        self.calls, self.markers, self.spilled = [], [], None

    def is_recording(self):
        if self.is_done or not self.resumed:
            return False
        since = now_ns() - self.start_ns
        return not self.periods or any(
            delay <= since < delay + length for delay, length, _ in self.periods
        )

    def call(self, number, name, start_ns, end_ns, arguments, op):
        if self.is_recording():
            with self.lock:
                self.calls.append((number, name, start_ns, end_ns, arguments, op))
                self._spill()

    def _spill(self):
        if self.spilled is None:
            self.spill_folder.mkdir(parents=True, exist_ok=True)
            name = f"{os.getppid()}-{os.getpid()}-kernel_dispatch.dat"
            self.spilled = self.spill_folder / name
        with self.spilled.open("ab") as file:
            file.write(bytes(RECORD_BYTES))

    def _load_roctx(self):
        """Take the place of what the marker library does without a profiler."""
        try:
            library = ctypes.CDLL("librocprofiler-sdk-roctx.so.1")
        except OSError:
            return
        with_text = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
        plain = ctypes.CFUNCTYPE(None)
        self.callbacks = [
            with_text(self._mark),
            with_text(self._push),
            plain(self._pop),
            plain(lambda: setattr(self, "resumed", True)),
            plain(lambda: setattr(self, "resumed", False)),
        ]
        library.fake_set_tool(*self.callbacks)

    def _marker(self, text, start_ns, end_ns):
        if self.is_recording() and self.environment.get("ROCPROF_MARKER_API_TRACE"):
            with self.lock:
                self.markers.append((text, start_ns, end_ns))
                self._spill()

    def _mark(self, text):
        now = now_ns()
        self._marker(text.decode(), now, now)

    def _push(self, text):
        self.open_ranges.append((text.decode(), now_ns()))

    def _pop(self):
        text, begin = self.open_ranges.pop()
        self._marker(text, begin, now_ns())

    def _take_signals(self):
        theirs = {number: signal.getsignal(number) for number in HANDLED}
        real_signal, real_get = signal.signal, signal.getsignal

        def handle(number, frame):
            self._wait_for_children()
            self.finalize()
            then = theirs[number]
            if callable(then):
                then(number, frame)
            elif then == signal.SIG_DFL:
                real_signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        def set_theirs(number, handler):
            if number not in theirs:
                return real_signal(number, handler)
            before, theirs[number] = theirs[number], handler
            return before

        signal.signal = set_theirs
        signal.getsignal = lambda number: theirs.get(number) or real_get(number)
        for number in HANDLED:
            real_signal(number, handle)

    def _wait_for_children(self):
        limit = float(self.environment.get("ROCPROF_FINALIZE_WAIT_TIMEOUT_SECONDS", "1"))
        deadline = time.monotonic() + limit
        children = Path("/proc/self/task") / str(os.getpid()) / "children"
        while children.read_text().split() and time.monotonic() < deadline:
            time.sleep(0.01)

    def finalize(self):
        """Write the database, slowly, unless there is too little for one."""
        with self.lock:
            if self.is_done:
                return
            self.is_done = True
            pause_s = float(self.environment.get("FAKE_ROCPROFV3_FINALIZE_S", "0.3")) / 2
            time.sleep(pause_s)
            minimum = int(self.environment.get("ROCPROF_MINIMUM_OUTPUT_BYTES", "0"))
            if RECORD_BYTES * (len(self.calls) + len(self.markers)) >= max(1, minimum):
                self._write(pause_s)
            if self.spilled:
                self.spilled.unlink(missing_ok=True)

    def _write(self, pause_s):
        sys.path.insert(0, str(ROWS))
        from rocpd_files import small_file

        path = Path(expanded(output_name(self.environment), self.environment))
        path.parent.mkdir(parents=True, exist_ok=True)
        newest = bool(self.environment.get("ROCPROF_HIP_EVENT_TRACE"))
        file = small_file(
            path,
            str(uuid.uuid4()),
            pid=os.getpid(),
            environment=dict(os.environ) | self.environment,
            command=" ".join(sys.orig_argv),
            hostname=socket.gethostname(),
            newest=newest,
            version="3.0.4" if newest else "3",
        )
        time.sleep(pause_s)
        write_rows(file, self.calls, self.markers, self.environment)
        file.save()


def write_rows(file, calls, markers, environment):
    """Write what happened, of the kinds that are switched on."""
    on = {
        kind: environment.get(f"ROCPROF_{name}_TRACE")
        for kind, name in (
            ("call", "HIP_RUNTIME_API"),
            ("kernel", "KERNEL"),
            ("copy", "MEMORY_COPY"),
            ("event", "HIP_EVENT"),
        )
    }
    streams = {op["stream"] for *_, op in calls if op} - {0}
    for stream in sorted(streams):
        file.stream(stream, f"Stream {stream}")
        file.queue(16 + stream, f"Queue {stream}")
    for number, name, start, end, arguments, op in calls:
        if on["call"]:
            file.call(name, number, start, max(end, start + 1), **arguments)
        if op and on[op["kind"]]:
            write_op(file, number, op)
    # Numbers become ids of rows, and a reader goes through all ids there may be.
    after_calls = 1 + max((number for number, *_ in calls), default=0)
    for number, (text, start, end) in enumerate(markers, after_calls):
        name = "roctxMarkA" if start == end else "roctxThreadRangeA"
        file.marker(text, number, start, end, name=name)


def write_op(file, number, op):
    span, stream = (op["start"], op["end"]), op["stream"]
    if op["kind"] == "kernel":
        sizes = {f"{what}_size_{axis}": 64 for what in ("workgroup", "grid") for axis in "xyz"}
        file.dispatch(op["name"], number, *span, queue=16 + stream, stream=stream, **sizes)
    elif op["kind"] == "copy":
        file.memory_copy("MEMORY_COPY_HOST_TO_DEVICE", number, *span, op["size"], stream=stream)
    else:
        places = {"queue": 16 + stream, "stream": stream, "source_queue": 16 + op["source"]}
        file.hip_event(op["name"], number, *span, handle=op["event"], **places)


def output_name(environment):
    name = environment.get("ROCPROF_OUTPUT_FILE_NAME") or "%hostname%/%pid%"
    return f"{environment['ROCPROF_OUTPUT_PATH']}/{name}_results.db"


def expanded(text, environment):
    """Return a path with its keys replaced, in the process that writes."""
    keys = {"%hostname%": socket.gethostname(), "%pid%": os.getpid(), "%ppid%": os.getppid()}
    for key, value in keys.items():
        text = text.replace(key, str(value))
    return re.sub(
        r"%env\{(\w+)\}%|%q\{(\w+)\}",
        lambda match: environment.get(match[1] or match[2], ""),
        text,
    )


def as_request(environment):
    """Return what an attaching rocprofv3 sends to the process."""
    mine = {name: value for name, value in environment.items() if name.startswith("ROCPROF_")}
    mine |= {k: v for k, v in environment.items() if k.startswith("FAKE_ROCPROFV3_")}
    return json.dumps({"agent": str(Path(__file__).resolve()), "environment": mine}) + "\n"
