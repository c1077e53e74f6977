"""Devices, queues, streams and captures of rocpd files."""

from polars.testing import assert_frame_equal
from rocpd_files import GUID, merge, small_file

from tracekit.formats import read_trace, silent
from tracekit.formats.rocpd import FORMAT

OTHER_GUID = "000002aa-1111-7222-8333-444444444444"


def read(path):
    return FORMAT.read(path, silent)


def counts(trace):
    return {note.code: note.count for note in trace.notes}


def test_captures_of_one_file_do_not_join_each_others_calls(tmp_path):
    first = small_file(tmp_path / "a.db")
    first.call("hipLaunchKernel", 1, 10, 20)
    second = small_file(tmp_path / "b.db", OTHER_GUID)
    second.call("hipMalloc", 9, 10, 20)
    second.dispatch("gemm", 1, 30, 40)
    merged = merge(tmp_path / "merged.db", [first.save(), second.save()])

    trace = read(merged)

    assert trace.table("processes")["pid"].to_list() == [28, 28]
    assert trace.table("ops").select("process_id", "call_id").rows() == [(1, None)]
    assert trace.table("devices").height == 1
    assert trace.sources == [str(merged)]


def test_two_files_of_one_machine_share_their_gpu_and_two_machines_do_not(tmp_path):
    one = small_file(tmp_path / "a.db", hostname="container-1").save()
    same = small_file(tmp_path / "b.db", OTHER_GUID, hostname="container-2").save()
    other = small_file(tmp_path / "c.db", GUID[:-1] + "e", machine_id="machine-b").save()

    trace = read_trace([one, same, other])

    assert trace.table("devices").height == 2
    assert trace.table("process_devices")["device_id"].to_list() == [0, 0, 2]


def test_boards_with_equal_machine_and_place_but_other_numbers_are_two_devices(tmp_path):
    paths = []
    for name, guid, board in (("a", GUID, "86aa"), ("b", OTHER_GUID, "86ab")):
        file = small_file(tmp_path / f"{name}.db", guid)
        file.agent(3, board=board)
        paths.append(file.save())

    devices = read_trace(paths).table("devices")

    assert sorted(devices["key"].to_list()) == [
        "machine-a:2",
        "machine-a:3:86aa",
        "machine-a:3:86ab",
    ]


def test_streams_and_queues_keep_their_pairs_over_time(tmp_path, frame):
    file = small_file(tmp_path / "a.db")
    file.queue(17, "Queue 1")
    file.stream(5, "Stream 4")
    file.dispatch("k", 1, 10, 20, queue=16, stream=5)
    file.dispatch("k", 2, 20, 30, queue=17, stream=5)
    file.dispatch("k", 3, 30, 40, queue=16, stream=5)

    trace = read(file.save())

    expected = """
        stream_id queue_id first_ns last_ns ops
        1         1        10       40      2
        1         2        20       30      1
    """
    assert_frame_equal(trace.table("stream_queues"), frame("stream_queues", expected))
    assert trace.table("streams").select("handle", "flags").rows() == [(0, "null"), (5, None)]
    assert trace.table("queues")["handle"].to_list() == [16, 17]
    assert counts(trace)["rocpd.stream-flags-unknown"] == 1


def test_the_writers_queue_0_is_no_hardware_queue_unless_something_ran_on_it(tmp_path):
    unused = small_file(tmp_path / "a.db")
    used = small_file(tmp_path / "b.db", OTHER_GUID)
    used.dispatch("k", 1, 10, 20, queue=0)

    assert read(unused.save()).table("queues")["handle"].to_list() == [16]
    assert read(used.save()).table("queues")["handle"].to_list() == [0, 16]
