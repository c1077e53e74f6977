"""When the virtual device runs what, worked out by hand from its constants."""

import pytest
from virtual_runs import START_NS, device_of, recorded, times_of

from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.virtual import Config


def rows(trace):
    return times_of(trace).select("name", "start", "end").rows()


def test_a_stream_runs_its_kernels_one_after_the_other(tmp_path):
    def host(device):
        stream = device.stream()  # 0 to 10
        device.launch(Kernel("a", 5_000), stream)  # 10 to 20, in the queue at 1020
        device.launch(Kernel("b", 300), stream)
        device.elapse("think", 10_000)  # from 30
        device.launch(Kernel("c", 300), stream)  # in the queue at 11040

    trace, _ = recorded(tmp_path, host, host_costs_ns={"think": 1})
    assert rows(trace) == [
        ("a", 1_120, 6_120),
        ("b", 6_220, 6_520),
        ("c", 11_140, 11_440),
    ]


def test_streams_run_side_by_side_on_queues_of_their_own(tmp_path):
    def host(device):
        first, second = device.stream(), device.stream()  # until 20
        device.launch(Kernel("a", 5_000), first)
        device.launch(Kernel("b", 300), second)

    trace, _ = recorded(tmp_path, host)
    assert rows(trace) == [("a", 1_130, 6_130), ("b", 1_140, 1_440)]
    assert times_of(trace)["queue_id"].n_unique() == 2


def test_streams_beyond_the_hardware_queues_share_the_least_used(tmp_path):
    def host(device):
        for number in range(6):
            device.launch(Kernel(f"k{number}", 5_000), device.stream())

    trace, _ = recorded(tmp_path, host, max_hw_queues=4)
    queues = dict(times_of(trace).select("name", "queue_id").iter_rows())
    assert len(set(queues.values())) == 4
    assert queues["k4"] == queues["k0"] and queues["k5"] == queues["k1"]


def test_a_stream_behind_another_in_one_hardware_queue_waits_for_it(tmp_path):
    def host(device):
        first, second = device.stream(), device.stream()  # until 20
        device.launch(Kernel("a", 5_000), first)
        device.launch(Kernel("b", 300), second)

    trace, _ = recorded(tmp_path, host, max_hw_queues=1)
    assert rows(trace) == [("a", 1_130, 6_130), ("b", 6_230, 6_530)]


def test_each_priority_has_its_own_hardware_queues(tmp_path):
    def host(device):
        for priority in (0, 0, -1):
            device.launch(Kernel("k", 5_000), device.stream(priority=priority))

    trace, _ = recorded(tmp_path, host, max_hw_queues=1)
    assert times_of(trace)["queue_id"].to_list() == [1, 2, 1]


def satisfied_wait(device):
    producer, consumer, event = device.stream(), device.stream(), device.event()
    device.launch(Kernel("a", 100), producer)
    event.record(producer)
    device.elapse("think", 10_000)
    event.wait(consumer)
    device.launch(Kernel("b", 300), consumer)


def no_wait(device):
    producer, consumer, event = device.stream(), device.stream(), device.event()
    device.launch(Kernel("a", 100), producer)
    event.record(producer)
    device.elapse("think", 10_010)  # the call that is not made
    device.launch(Kernel("b", 300), consumer)


def test_a_satisfied_wait_costs_the_device_nothing(tmp_path):
    costs = {"host_costs_ns": {"think": 1}}
    with_wait, _ = recorded(tmp_path / "with", satisfied_wait, **costs)
    without, _ = recorded(tmp_path / "without", no_wait, **costs)
    assert rows(with_wait) == rows(without)


def pending_wait(device):
    """`c` stands behind a wait for `a` while `b1` and `b2` are dispatched in a third queue."""
    one, two, three, event = device.stream(), device.stream(), device.stream(), device.event()
    device.launch(Kernel("a", 5_000), one)  # 40 to 50, starts 1150, ends 6150
    event.record(one)
    event.wait(two)  # in its queue at 1070
    device.launch(Kernel("c", 100), two)
    device.elapse("think", 1_000)
    device.launch(Kernel("b1", 1_000), three)  # until 1090, in its queue at 2090
    device.launch(Kernel("b2", 1_000), three)
    device.elapse("think", 5_000)
    device.launch(Kernel("b3", 1_000), three)  # until 6110, in its queue at 7110: released at 6350


def test_a_wait_pending_in_another_queue_slows_each_dispatch(tmp_path):
    trace, _ = recorded(tmp_path, pending_wait, host_costs_ns={"think": 1})
    assert rows(trace) == [
        ("a", 1_150, 6_150),
        ("b1", 2_090 + 150, 3_240),
        ("b2", 3_240 + 150, 4_390),
        ("c", 6_150 + 200 + 100, 6_550),
        ("b3", 7_110 + 100, 8_210),
    ]


def test_a_wait_slows_the_very_work_it_waits_for(tmp_path):
    def host(device):
        one, two, event = device.stream(), device.stream(), device.event()
        for _ in range(3):
            device.launch(Kernel("a", 1_000), one)  # from 30, in the queue at 1040, 1050, 1060
        event.record(one)
        event.wait(two)  # pending from 1080, when the first is dispatched already

    trace, _ = recorded(tmp_path, host)
    first, second = 1_040 + 100, 2_140 + 150
    assert rows(trace) == [
        ("a", first, first + 1_000),
        ("a", second, second + 1_000),
        ("a", second + 1_150, second + 2_150),
    ]


def test_a_graph_is_dispatched_as_one_packet_and_its_kernels_follow_sooner(tmp_path):
    def host(device):
        stream = device.stream()
        with device.capture(stream) as graph:  # begin, two launches, end, instantiate: until 60
            device.launch(Kernel("a", 1_000), stream)
            device.launch(Kernel("b", 500), stream)
        graph.replay(stream)  # 60 to 70, in the queue at 1070

    trace, _ = recorded(tmp_path, host)
    assert rows(trace) == [("a", 1_170, 2_170), ("b", 2_180, 2_680)]


def contended_work(device, look):
    """Two streams with kernels and graphs that meet; `look` is called in between."""
    one, two, event = device.stream(), device.stream(), device.event()
    node, gemm = Kernel("node", 700, sensitivity=0.5), Kernel("gemm", 2_000, sensitivity=0.3)
    with device.capture(one) as graph:
        for _ in range(6):
            device.launch(node, one)
    for _ in range(4):
        graph.replay(one)
        device.launch(gemm, one)
        look(event)
        device.elapse("think", 900)
        look(event)
        device.launch(gemm, two)
        event.record(two)
        device.elapse("think", 1_700)
        look(event)
        event.wait(one)


def test_looking_at_the_device_changes_nothing(tmp_path):
    # A query lets the device run up to now, in the middle of kernels and graphs.
    options = {"host_costs_ns": {"think": 1}, "timing": {"calls_ns": {"hipEventQuery": 0}}}

    def quiet(device):
        contended_work(device, lambda event: None)

    def curious(device):
        contended_work(device, lambda event: event.query())

    unseen, _ = recorded(tmp_path / "unseen", quiet, **options)
    seen, _ = recorded(tmp_path / "seen", curious, **options)
    assert unseen.table("ops").height == 4 * 8
    assert rows(seen) == rows(unseen)


def test_ordering_edges_make_a_pending_wait_free_for_others(tmp_path):
    trace, _ = recorded(tmp_path, pending_wait, host_costs_ns={"think": 1}, ordering_edges=True)
    assert rows(trace)[1:3] == [("b1", 2_190, 3_190), ("b2", 3_290, 4_290)]


def span_of_graph_ns(tmp_path, *, is_pending, **options):
    def host(device):
        main, side, other, event = device.stream(), device.stream(), device.stream(), device.event()
        node = Kernel("node", 1_200)
        with device.capture(main) as graph:
            for _ in range(512):
                device.launch(node, main)
        if is_pending:
            device.launch(Kernel("long", 5_000_000), other)
            event.record(other)
            event.wait(side)
        graph.replay(main)

    trace, _ = recorded(tmp_path, host, timing=Config().as_options()["timing"], **options)
    nodes = times_of(trace).filter(name="node")
    assert nodes.height == 512
    return nodes["end"].max() - nodes["start"].min()


def test_a_graph_of_512_kernels_takes_what_was_published(tmp_path):
    # Published: 853 µs alone, 1541 µs with a wait pending in another queue (0.1 % is rounding).
    alone = span_of_graph_ns(tmp_path / "alone", is_pending=False)
    pending = span_of_graph_ns(tmp_path / "pending", is_pending=True)
    edges = span_of_graph_ns(tmp_path / "edges", is_pending=True, ordering_edges=True)
    assert alone == pytest.approx(853_000, rel=1e-3)
    assert pending == pytest.approx(1_541_000, rel=2e-3)
    assert edges == alone


def test_kernels_side_by_side_slow_down_by_their_sensitivity(tmp_path):
    def host(device):
        one, two = device.stream(), device.stream()  # until 20
        device.launch(Kernel("reduce", 1_000, sensitivity=0.4), one)  # starts 1130
        device.launch(Kernel("gemm", 350), two)  # 1140 to 1490

    trace, _ = recorded(tmp_path, host)
    # 10 ns alone; 350 ns at 1.4 do 250 ns of work; 740 ns alone.
    assert rows(trace) == [("reduce", 1_130, 1_490 + 740), ("gemm", 1_140, 1_490)]


def test_kernels_do_not_contend_with_copies(tmp_path):
    def host(device):
        one, two = device.stream(), device.stream()
        there, here = device.allocate([1], "int64"), device.host_buffer([1], "int64", pinned=True)
        device.launch(Kernel("reduce", 10_000, sensitivity=0.4), one)
        device.copy_async(there, here, two)

    trace, _ = recorded(tmp_path, host)
    spans = times_of(trace)
    lengths = dict(zip(spans["name"], spans["end"] - spans["start"], strict=True))
    assert lengths == {"reduce": 10_000, "MEMORY_COPY_HOST_TO_DEVICE": 2_008}


def test_launch_blocking_lets_the_host_wait_for_each_kernel_inside_its_call(tmp_path):
    def host(device):
        # 10 to 20, in the queue at 1020, done 6120, seen 6620.
        device.launch(Kernel("a", 5_000), device.stream())
        assert device.now_ns - START_NS == 6_620

    trace, _ = recorded(tmp_path, host, launch_blocking=True)
    (call,) = trace.table("calls").filter(kind="launch").rows(named=True)
    assert (call["start_ns"] - START_NS, call["end_ns"] - START_NS) == (10, 6_620)


def test_launch_blocking_holds_for_graphs_too():
    device = device_of(launch_blocking=True)
    stream = device.stream()
    with device.capture(stream) as graph:  # until 50
        device.launch(Kernel("a", 5_000), stream)
    graph.replay(stream)
    assert device.now_ns - 1_000_000_000 == 60 + 1_000 + 100 + 5_000 + 500


def test_serialising_copies_afterwards_holds_the_host_until_each_is_done():
    device = device_of(serialize_copy=2)
    there, here = device.allocate([1], "int64"), device.host_buffer([1], "int64", pinned=True)
    device.copy_async(there, here, device.stream())  # from 30
    assert device.now_ns - 1_000_000_000 == 40 + 1_000 + 100 + 2_008 + 500


def test_an_event_that_is_done_does_not_hold_the_host():
    device = device_of(host_costs_ns={"think": 1})
    stream, event = device.stream(), device.event()
    device.launch(Kernel("a", 5_000), stream)  # 20 to 30, done 6130
    event.record(stream)
    device.elapse("think", 6_100)  # until 6140: a wake-up would be at 6630
    event.synchronize()
    assert device.now_ns - 1_000_000_000 == 6_150


def test_a_synchronise_returns_when_the_work_is_done_and_at_once_when_it_was():
    device = device_of()
    stream, event = device.stream(), device.event()
    device.launch(Kernel("a", 5_000), stream)  # 20 to 30, done 6130
    event.record(stream)
    event.synchronize()
    assert device.now_ns - 1_000_000_000 == 6_630
    stream.synchronize()
    device.synchronize()
    assert device.now_ns - 1_000_000_000 == 6_650


def test_a_query_tells_whether_the_record_is_done():
    device = device_of(host_costs_ns={"think": 1})
    stream, event = device.stream(), device.event()
    assert event.query()
    device.launch(Kernel("a", 5_000), stream)
    event.record(stream)
    assert not event.query()
    device.elapse("think", 6_079)  # until 6139, and the kernel ends at 6140
    assert not event.query()
    assert event.query()


def launches_only(device):
    for _ in range(5):
        device.launch(Kernel("a", 5_000), device.null_stream)


def graph_only(device):
    stream = device.stream()
    with device.capture(stream) as graph:
        for _ in range(20):
            device.launch(Kernel("node", 1_000), stream)
    graph.replay(stream)


@pytest.mark.parametrize("host", [launches_only, graph_only])
def test_two_runs_of_one_seed_are_the_same_and_of_two_seeds_are_not(tmp_path, host):
    def bytes_of(name, seed):
        recorded(tmp_path / name, host, kernel_jitter=0.2, seed=seed)
        return next((tmp_path / name).glob("*.db")).read_bytes()

    assert bytes_of("first", 1) == bytes_of("second", 1)
    assert bytes_of("third", 2) != bytes_of("fourth", 1)
