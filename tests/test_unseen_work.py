"""Calls that are missing, told by numbers; and copies that may meet work that is not seen."""

import polars as pl
import pytest

from tracekit.call_numbers import missing_calls
from tracekit.ordering import host_calls
from tracekit.ordering.copy_orders import copy_orders
from tracekit.tables.catalog import TABLES


def holes(frame, numbers, markers=(), names=None):
    """Return the starts of the calls before which one is missing; call `n` starts at 10 × n."""
    names = names or ["hipLaunchKernel"] * len(numbers)
    calls = "\n".join(
        f"0 {place} {name} {10 * number} {10 * number} {number}"
        for place, (number, name) in enumerate(zip(numbers, names, strict=True))
    )
    ranges = "\n".join(f"0 marker {10 * number} {10 * number}" for number in markers)
    found = missing_calls(
        frame("calls", f"process_id call_id name start_ns end_ns correlation_id\n{calls}"),
        frame("ranges", f"process_id kind start_ns end_ns\n{ranges}"),
    )
    return found["start_ns"].to_list()


def test_numbers_tell_which_calls_are_missing(frame):
    assert holes(frame, [1, 2, 3]) == []
    assert holes(frame, [1, 2, 5, 6, 8]) == [50, 80]
    assert holes(frame, [1, 3, 6], markers=[2, 4, 5]) == []
    assert holes(frame, [1, 3, 6], markers=[2, 4]) == [60]


def test_a_recording_that_begins_late_lacks_the_calls_before(frame):
    assert holes(frame, [4, 5]) == [40]
    assert holes(frame, [4, 5], markers=[1, 2, 3]) == []


def test_a_call_of_another_library_takes_a_number_too(frame):
    names = ["hipLaunchKernel", "__hipPushCallConfiguration", "hsa_signal_create"]
    assert holes(frame, [1, 2, 3], names=names) == []


def test_numbers_of_cuda_tell_nothing(frame):
    assert holes(frame, [4, 9], names=["cudaLaunchKernel"] * 2) == []


# A copy on stream 1 from pinned memory into 64 bytes at 1000, and kernels beside it. Unless said
# otherwise the kernel of stream 1, which is in order with it, reads them.
CALLS = {
    "before": "launch hipLaunchKernel 2",
    "copy": "copy hipMemcpyAsync 1",
    "after": "launch hipLaunchKernel 1",
    "sync": "device_sync hipDeviceSynchronize -",
    "lost": None,
    "fill": "fill hipMemsetAsync 2",
    "other_copy": "copy hipMemcpyAsync 2",
}
READS_IT, READS_ANOTHER = "1000 64 read", "5000 64 read"


def order(frame, *made, reads=(), addresses="1000 9000 64"):
    """Return how the copy is ordered, after these calls; ops run one after another."""
    calls, ops, copies, accesses = [], [], [], []
    for place, what in enumerate(made):
        if CALLS[what] is None:
            continue
        kind, name, stream = CALLS[what].split()
        at = 10 * place
        calls.append(f"{place} 0 1 {kind} {name} {at} {at + 1} {place + 1} {stream}")
        if kind != "device_sync":
            op = kind if kind in ("copy", "fill") else "kernel"
            ops.append(f"{place} {op} {what} 0 0 {stream} {at + 2} {at + 9} {place}")
        if kind == "copy":
            told = addresses if what == "copy" else "- - -"
            copies.append(f"{place} {place} 0 {told} host-to-device false true")
        accesses += [f"{place} {use}" for owner, use in reads if owner == what]
    text = {
        "calls": (
            "call_id process_id thread_id kind name start_ns end_ns correlation_id stream_id",
            calls,
        ),
        "ops": ("op_id kind name process_id device_id stream_id start_ns end_ns call_id", ops),
        "copies": (
            "call_id op_id process_id dst_address src_address copied_bytes direction is_blocking is_pinned",
            copies,
        ),
        "accesses": ("call_id address size_bytes mode", accesses),
        "streams": ("stream_id process_id flags", ["1 0 nonblocking", "2 0 nonblocking"]),
    }
    tables = {
        name: frame(name, "\n".join([header, *rows])) for name, (header, rows) in text.items()
    }
    rest = (TABLES[name].empty() for name in ("marks", "waits", "ranges"))
    host = host_calls(tables["ops"], tables["calls"], tables["copies"], *rest)
    found = copy_orders(host, *(tables[n] for n in ("ops", "copies", "accesses", "streams")))
    return found.filter(pl.col("call_id") == made.index("copy"))["order"].item()


IN_ORDER = ("after", READS_IT)


def test_a_copy_is_ordered_where_all_that_uses_its_memory_is(frame):
    assert order(frame, "copy", "after", reads=[IN_ORDER]) == "stream"
    elsewhere = [IN_ORDER, ("before", READS_ANOTHER)]
    assert order(frame, "before", "copy", "after", reads=elsewhere) == "stream"
    met = [IN_ORDER, ("before", READS_IT)]
    assert order(frame, "before", "copy", "after", reads=met) == "accident"


def test_a_missing_call_may_have_used_its_memory_unless_the_host_waited_between(frame):
    assert order(frame, "lost", "copy", "after", reads=[IN_ORDER]) == "unknown"
    assert order(frame, "copy", "after", "lost", "sync", reads=[IN_ORDER]) == "unknown"
    assert order(frame, "lost", "sync", "sync", "copy", "after", reads=[IN_ORDER]) == "stream"
    assert order(frame, "copy", "after", "sync", "lost", "sync", reads=[IN_ORDER]) == "stream"


def test_a_missing_call_takes_nothing_from_what_is_known_to_be_unordered(frame):
    met = [IN_ORDER, ("before", READS_IT)]
    made = ("before", "copy", "after", "sync", "lost", "sync")
    assert order(frame, *made, reads=met) == "accident"


def test_work_with_a_buffer_of_unknown_place_may_use_its_memory(frame):
    reads = [IN_ORDER, ("before", "- - read"), ("before", READS_ANOTHER)]
    assert order(frame, "before", "copy", "after", reads=reads) == "unknown"


def test_what_markers_say_behind_a_missing_one_may_not_be_all(frame):
    # The host has waited for the copy, so nothing later can race with it, whatever it uses.
    made = ("copy", "sync", "lost", "before", "sync")
    assert order(frame, *made, reads=[("before", READS_ANOTHER)]) == "host-sync"
    whole = ("copy", "sync", "before", "sync")
    assert order(frame, *whole, reads=[("before", READS_ANOTHER)]) == "no-conflict"


@pytest.mark.parametrize("what", ["fill", "other_copy"])
def test_a_fill_or_copy_of_unknown_memory_may_use_it(frame, what):
    assert order(frame, what, "copy", "after", reads=[IN_ORDER]) == "unknown"
    assert order(frame, what, "sync", "copy", "after", reads=[IN_ORDER]) in ("stream", "host-sync")


def test_a_copy_of_unknown_memory_is_in_order_only_if_all_work_is(frame):
    silent = {"addresses": "- - -"}
    assert order(frame, "copy", "after", **silent) == "stream"
    assert order(frame, "before", "copy", "after", **silent) == "unknown"
    # Work of known memory was not asked about.
    made = ("before", "copy", "after")
    assert order(frame, *made, reads=[("before", READS_ANOTHER)], **silent) == "unknown"
