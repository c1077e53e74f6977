"""What the virtual device orders, and what it leaves to chance: bytes tell."""

import pytest
from virtual_runs import device_of

from instrumented_runtime.devices import Kernel

LONG_NS = 50_000


def filling(value):
    return Kernel(f"fill_{value}", LONG_NS, function=lambda target: target.fill_(value))


def adding():
    def add(source, target):
        target.add_(source)

    return Kernel("add", 100, function=add)


def host_value(device, buffer):
    """Return what the device has in a buffer when all is done."""
    device.synchronize()
    seen = device.host_buffer([1], "int64")
    device.copy(seen, buffer)
    return int(seen.on_host()[0])


def written_after_copy(flags, **options):
    """A kernel fills with 7 while a blocking hipMemcpy writes 5; return what is left."""
    device = device_of(**options)
    stream = device.stream(flags=flags)
    there, here = device.allocate([1], "int64"), device.host_buffer([1], "int64")
    here.on_host().fill_(5)
    device.launch(filling(7), stream, writes=[there])
    device.copy(there, here)
    return host_value(device, there)


@pytest.mark.parametrize("rocm", ["7.2", "10"])
def test_a_blocking_copy_is_ordered_with_blocking_streams_only(rocm):
    assert written_after_copy("blocking", rocm=rocm) == 5
    # The copy is done first, and the kernel that was launched before it overwrites it.
    assert written_after_copy("nonblocking", rocm=rocm) == 7


@pytest.mark.parametrize(
    "mask",
    [
        {"serialize_copy": 1},
        {"max_hw_queues": 1},
        {"launch_blocking": True},
    ],
)
def test_masks_order_what_is_not_ordered(mask):
    assert written_after_copy("nonblocking", **mask) == 5


def test_a_null_stream_of_its_own_queue_is_not_masked_by_a_single_shared_one():
    assert written_after_copy("nonblocking", max_hw_queues=1, rocm="10") == 7


def copy_time_ns(rocm):
    """Five streams are busy; a small blocking copy follows. How long does the host wait?"""
    device = device_of(rocm=rocm)
    there, here = device.allocate([1], "int64"), device.host_buffer([1], "int64")
    for _ in range(5):
        device.launch(Kernel("prefill", 1_000_000), device.stream())
    start = device.now_ns
    device.copy(there, here)
    return device.now_ns - start


def test_a_copy_behind_shared_queues_waits_by_accident_and_one_of_its_own_does_not():
    assert copy_time_ns("7.2") > 1_000_000
    # 8 bytes staged, 10 for the call, in the queue after 1000, dispatched after 100, 2008 long,
    # seen 500 later.
    assert copy_time_ns("10") == 10 + 1_000 + 100 + 2_008 + 500


def test_work_of_the_null_stream_waits_for_blocking_streams_and_they_for_it():
    device = device_of()
    blocking = device.stream(flags="blocking")
    one, two = device.allocate([1], "int64"), device.allocate([1], "int64")
    device.launch(filling(3), blocking, writes=[one])
    device.launch(adding(), device.null_stream, reads=[one], writes=[two])
    device.launch(adding(), blocking, reads=[two], writes=[one])
    assert host_value(device, one) == 6


def test_to_synchronise_the_null_stream_is_to_wait_for_blocking_streams_too():
    for flags, is_done in (("blocking", True), ("nonblocking", False)):
        device = device_of()
        stream, event = device.stream(flags=flags), device.event()
        device.launch(Kernel("delay", LONG_NS), stream)
        event.record(stream)
        device.null_stream.synchronize()
        assert event.query() == is_done


def test_work_of_the_null_stream_and_of_nonblocking_streams_is_not_ordered():
    device = device_of()
    stream = device.stream()
    one, two = device.allocate([1], "int64"), device.allocate([1], "int64")
    device.launch(filling(3), stream, writes=[one])
    device.launch(adding(), device.null_stream, reads=[one], writes=[two])
    assert host_value(device, two) == 0


def after_wait(*, is_recorded_first):
    device = device_of()
    producer, consumer, event = device.stream(), device.stream(), device.event()
    one, two = device.allocate([1], "int64"), device.allocate([1], "int64")
    device.launch(filling(3), producer, writes=[one])
    if is_recorded_first:
        event.record(producer)
        event.wait(consumer)
    else:
        event.wait(consumer)
        event.record(producer)
    device.launch(adding(), consumer, reads=[one], writes=[two])
    return host_value(device, two)


def test_a_wait_orders_with_the_last_record_and_with_none_it_orders_nothing():
    assert after_wait(is_recorded_first=True) == 3
    assert after_wait(is_recorded_first=False) == 0


def test_a_pinned_source_is_read_when_the_copy_runs_and_a_pageable_one_at_the_call():
    for pinned, expected in ((True, 9), (False, 5)):
        device = device_of()
        stream = device.stream()
        there, here = device.allocate([1], "int64"), device.host_buffer([1], "int64", pinned=pinned)
        here.on_host().fill_(5)
        device.launch(Kernel("delay", LONG_NS), stream)
        device.copy_async(there, here, stream)
        here.on_host().fill_(9)
        assert host_value(device, there) == expected


def test_the_host_waits_for_an_asynchronous_copy_to_pageable_memory_only():
    for pinned, expected in ((True, 0), (False, 3)):
        device = device_of()
        stream = device.stream()
        there, here = device.allocate([1], "int64"), device.host_buffer([1], "int64", pinned=pinned)
        device.launch(filling(3), stream, writes=[there])
        device.copy_async(here, there, stream)
        assert int(here.on_host()[0]) == expected
        stream.synchronize()
        assert int(here.on_host()[0]) == 3


def test_the_host_does_not_wait_for_a_copy_inside_device_memory():
    device = device_of()
    there, of, here = (device.allocate([1], "int64") for _ in range(3))
    start = device.now_ns
    device.copy(there, of)
    assert device.now_ns - start == 10
    device.copy(device.host_buffer([1], "int64"), here)
    assert device.now_ns - start > 1_000 + 2 * 2_008


def test_the_host_can_watch_pinned_memory_without_waiting():
    device = device_of(host_costs_ns={"think": 1})
    stream = device.stream()
    there, here = device.allocate([1], "int64"), device.host_buffer([1], "int64", pinned=True)
    device.launch(filling(3), stream, writes=[there])
    device.copy_async(here, there, stream)
    assert int(here.on_host()[0]) == 0
    device.elapse("think", 2 * LONG_NS)
    assert int(here.on_host()[0]) == 3


def test_a_graph_forks_and_joins_as_it_was_captured():
    device = device_of()
    main, side, fork, join = device.stream(), device.stream(), device.event(), device.event()
    one, two = device.allocate([1], "int64"), device.allocate([1], "int64")
    with device.capture(main) as graph:
        device.launch(adding(), main, reads=[one], writes=[two])
        fork.record(main)
        fork.wait(side)
        device.launch(filling(4), side, writes=[one])
        join.record(side)
        join.wait(main)
        device.launch(adding(), main, reads=[one], writes=[two])
    assert host_value(device, two) == 0  # capture runs nothing
    for _ in range(3):
        graph.replay(main)
    assert host_value(device, two) == 0 + 4 + 4 + 4 + 4 + 4


def test_a_branch_that_is_not_joined_is_refused():
    device = device_of()
    main, side, fork = device.stream(), device.stream(), device.event()

    def capture():
        with device.capture(main):
            fork.record(main)
            fork.wait(side)
            device.launch(Kernel("a", 100), side)

    with pytest.raises(RuntimeError, match="was not joined back"):
        capture()
    device.launch(Kernel("a", 100), side)  # and the stream is usable again
    device.synchronize()
    assert device.tally.busy_ns == 100


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda device, stream, event: device.synchronize(), "hipDeviceSynchronize"),
        (lambda device, stream, event: stream.synchronize(), "hipStreamSynchronize"),
        (lambda device, stream, event: event.synchronize(), "hipEventSynchronize"),
        (lambda device, stream, event: event.query(), "hipEventQuery"),
        (
            lambda device, stream, event: device.copy(
                device.allocate([1], "int64"), device.host_buffer([1], "int64")
            ),
            "hipMemcpy",
        ),
        (
            lambda device, stream, event: device.copy_async(
                device.allocate([1], "int64"), device.host_buffer([1], "int64"), stream
            ),
            "pageable memory cannot be captured",
        ),
    ],
)
def test_what_a_capture_cannot_hold_is_refused(what, said):
    device = device_of()
    stream, event = device.stream(), device.event()
    event.record(stream)
    with pytest.raises(RuntimeError, match=said), device.capture(stream):
        what(device, stream, event)


def test_a_stream_of_another_device_is_refused():
    stream = device_of().stream(name="theirs")
    with pytest.raises(ValueError, match="theirs is not a stream of this device"):
        device_of().launch(Kernel("a", 100), stream)


def test_two_captures_do_not_mix():
    device = device_of()
    one, two, event = device.stream(), device.stream(), device.event()
    with device.capture(one), device.capture(two):
        event.record(one)
        with pytest.raises(RuntimeError, match="the event belongs to another capture"):
            event.wait(two)


def test_a_wait_for_an_event_that_was_never_recorded_is_nothing_in_a_capture_too():
    device = device_of()
    stream = device.stream()
    with device.capture(stream) as graph:
        device.event().wait(stream)
        device.launch(Kernel("a", 100), stream)
    graph.replay(stream)
    device.synchronize()
    assert device.tally.busy_ns == 100


def test_a_graph_whose_capture_failed_or_goes_on_cannot_be_replayed():
    device = device_of()
    stream, other = device.stream(), device.stream()
    graphs = []

    def fail():
        with device.capture(stream) as graph:
            graphs.append(graph)
            with pytest.raises(RuntimeError, match="has not ended well"):
                graph.replay(other)
            device.launch(Kernel("a", 100), stream)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    with pytest.raises(RuntimeError, match="has not ended well"):
        graphs[0].replay(stream)


def test_the_null_streams_order_costs_an_idle_device_nothing():
    lasted = []
    for first in ("null", "blocking"):
        device = device_of()
        blocking = device.stream(flags="blocking")
        streams = {"null": device.null_stream, "blocking": blocking}
        device.launch(Kernel("a", 100), streams[first])  # takes the lower queue
        device.synchronize()
        device.null_stream.synchronize()
        before = device.now_ns
        device.launch(Kernel("b", 100), blocking)
        blocking.synchronize()
        lasted.append(device.now_ns - before)
    assert lasted == [10 + 1_000 + 100 + 100 + 500] * 2
