"""On every real trace the parts add up: span and busy as another reader counts them, idle the rest."""

import gzip
import json
import sqlite3
from collections import defaultdict
from decimal import Decimal

import pytest
from real_traces import REAL_TRACES

from tracekit.formats import read_trace
from tracekit.pipeline import analyse

GPU_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}
FILES = sorted(
    path
    for folder in ("kineto", "rocpd")
    for path in (REAL_TRACES / folder).glob("*")
    # The hand-made negative sample books a copy on a CPU; its own test says what is read of it.
    if path.suffix in {".gz", ".json", ".db"} and "SYNTHETIC" not in path.name
)


def kineto_intervals(path):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        document = json.loads(file.read(), strict=False, parse_float=Decimal)
    by_device = defaultdict(list)
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and str(event.get("cat", "")).lower() in GPU_CATEGORIES:
            start = int(event["ts"] * 1000)
            by_device[event["args"]["device"]].append((start, start + int(event["dur"] * 1000)))
    return by_device


def rocpd_intervals(path):
    by_device = defaultdict(list)
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    rows = connection.execute(
        "SELECT agent_id, start, end FROM rocpd_kernel_dispatch UNION ALL "
        "SELECT dst_agent_id, start, end FROM rocpd_memory_copy"
    ).fetchall()
    connection.close()
    for agent, start, end in rows:
        by_device[agent].append((start, end))
    return by_device


def busy_and_span(intervals):
    busy, reach = 0, None
    for start, end in sorted(intervals):
        if reach is None or start > reach:
            busy, reach = busy + end - start, end
        elif end > reach:
            busy, reach = busy + end - reach, end
    return busy, max(end for _, end in intervals) - min(start for start, _ in intervals)


@pytest.mark.skipif(not FILES, reason="the folder of real traces is absent")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_idle_by_cause_and_busy_add_up_to_the_span(path):
    intervals = rocpd_intervals(path) if path.suffix == ".db" else kineto_intervals(path)
    report = analyse(read_trace([path]), only=["idle-gaps"])
    expected = sorted(busy_and_span(device) for device in intervals.values())
    assert sorted((device.busy_ns, device.span_ns) for device in report.devices) == expected
    for device in report.devices:
        assert all(part >= 0 for part in device.idle_ns_by_cause.values())
        assert device.busy_ns + sum(device.idle_ns_by_cause.values()) == device.span_ns
