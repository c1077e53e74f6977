"""Waits of rocpd files: inferred from arguments, or recorded by the profiler."""

from polars.testing import assert_frame_equal
from rocpd_files import small_file

from tracekit.formats import silent
from tracekit.formats.rocpd import FORMAT


def read(path):
    return FORMAT.read(path, silent)


def counts(trace):
    return {note.code: note.count for note in trace.notes}


def two_streams(path):
    """Start a file in which stream 3 is pointer 0xa on queue 16, stream 4 is 0xb on queue 17."""
    file = small_file(path)
    file.queue(17, "Queue 1")
    file.call("hipLaunchKernel", 1, 10, 20, stream="0xa")
    file.dispatch("producer", 1, 30, 200, stream=3, queue=16)
    file.call("hipLaunchKernel", 2, 20, 30, stream="0xb")
    file.dispatch("consumer", 2, 35, 150, stream=4, queue=17)
    return file


def test_a_wait_is_pending_from_the_streams_last_work_to_the_end_of_the_recorded_work(
    tmp_path, frame
):
    file = two_streams(tmp_path / "a.db")
    file.call("hipEventRecord", 3, 40, 50, event="0xe", stream="0xa")
    file.call("hipStreamWaitEvent", 4, 60, 70, stream="0xb", event="0xe", flags="0")
    file.call("hipLaunchKernel", 5, 80, 90, stream="0xa")
    file.dispatch("after the record", 5, 200, 900, stream=3, queue=16)

    trace = read(file.save())

    # Streams: 1 is handle 3, 2 is handle 4. The consumer's kernel ends at 150, the producer's that
    # was submitted before the record at 200; what was submitted after it does not count.
    expected = """
        wait_id process_id waiting_stream_id waiting_queue_id recording_stream_id recording_queue_id wait_call_id record_call_id pending_start_ns pending_end_ns evidence
        0       0          2                 2                1                   1                  3            2              150              200            inferred
    """
    assert_frame_equal(trace.table("waits"), frame("waits", expected))


def test_a_wait_starts_with_its_call_where_the_stream_was_idle_and_never_ends_before(tmp_path):
    file = two_streams(tmp_path / "a.db")
    file.call("hipEventRecord", 3, 40, 50, event="0xe", stream="0xa")
    file.call("hipStreamWaitEvent", 4, 600, 700, stream="0xb", event="0xe")

    waits = read(file.save()).table("waits")

    assert waits.select("pending_start_ns", "pending_end_ns").rows() == [(700, 700)]


def test_the_last_record_before_the_wait_counts(tmp_path):
    file = two_streams(tmp_path / "a.db")
    file.call("hipEventRecord", 3, 40, 50, event="0xe", stream="0xb")
    file.call("hipEventRecord", 4, 50, 60, event="0xe", stream="0xa")
    file.call("hipStreamWaitEvent", 5, 60, 70, stream="0xb", event="0xe")
    file.call("hipEventRecord", 6, 70, 80, event="0xe", stream="0xb")

    assert read(file.save()).table("waits")["record_call_id"].to_list() == [3]


def test_a_wait_for_an_event_never_seen_recorded_is_counted_and_has_no_end(tmp_path):
    file = two_streams(tmp_path / "a.db")
    file.call("hipStreamWaitEvent", 3, 60, 70, stream="0xb", event="0xe")

    trace = read(file.save())

    waits = trace.table("waits")
    assert waits.select("record_call_id", "pending_start_ns", "pending_end_ns").rows() == [
        (None, 150, None)
    ]
    assert counts(trace)["rocpd.waits-not-recorded"] == 1


def test_a_destroyed_events_handle_does_not_carry_its_record_over(tmp_path):
    file = two_streams(tmp_path / "a.db")
    file.call("hipEventRecord", 3, 40, 50, event="0xe", stream="0xa")
    file.call("hipEventDestroy", 4, 50, 55, event="0xe")
    file.call("hipStreamWaitEvent", 5, 60, 70, stream="0xb", event="0xe")

    trace = read(file.save())

    assert trace.table("waits")["record_call_id"].to_list() == [None]
    assert counts(trace)["rocpd.waits-not-recorded"] == 1


def test_event_calls_during_graph_capture_are_no_waits(tmp_path):
    file = two_streams(tmp_path / "a.db")
    file.thread(99)
    file.call("hipStreamBeginCapture", 3, 40, 41, stream="0xa", mode="0")
    file.call("hipEventRecord", 4, 42, 43, event="0xe", stream="0xa")
    file.call("hipStreamWaitEvent", 5, 44, 45, stream="0xb", event="0xe")
    file.call("hipEventRecord", 6, 46, 47, tid=99, event="0xf", stream="0xa")
    file.call("hipStreamEndCapture", 7, 48, 49, stream="0xa")
    file.call("hipStreamWaitEvent", 8, 50, 51, stream="0xb", event="0xf")

    trace = read(file.save())

    assert trace.table("waits").select("wait_call_id", "record_call_id").rows() == [(7, 5)]
    assert counts(trace)["rocpd.waits-captured"] == 2


def test_work_of_a_graph_counts_for_the_stream_it_was_launched_on(tmp_path):
    file = two_streams(tmp_path / "a.db")
    file.call("hipGraphLaunch", 3, 40, 45, graphExec="0x5", stream="0xa")
    file.dispatch("branch", 3, 200, 500, stream=8, queue=16)
    file.call("hipEventRecord", 4, 50, 55, event="0xe", stream="0xa")
    file.call("hipStreamWaitEvent", 5, 60, 70, stream="0xb", event="0xe")

    assert read(file.save()).table("waits")["pending_end_ns"].to_list() == [500]


def test_a_record_on_a_stream_that_itself_waits_is_done_when_that_wait_is_over(tmp_path):
    file = two_streams(tmp_path / "a.db")
    file.queue(18, "Queue 2")
    file.call("hipEventRecord", 3, 40, 50, event="0xe", stream="0xa")
    file.call("hipEventRecord", 4, 51, 52, event="0xd", stream="0xb")
    file.call("hipStreamWaitEvent", 5, 60, 70, stream="0xb", event="0xe")
    file.call("hipEventRecord", 6, 80, 90, event="0xf", stream="0xb")
    file.call("hipStreamWaitEvent", 7, 100, 110, stream="0xc", event="0xf")
    file.call("hipStreamWaitEvent", 8, 120, 130, stream="0xc", event="0xd")
    file.call("hipLaunchKernel", 9, 140, 145, stream="0xc")
    file.dispatch("after both", 9, 205, 210, stream=5, queue=18)

    waits = read(file.save()).table("waits")

    # 0xe is done at 200 with the producer, 0xf therefore too although 0xb ran until 150 only; 0xd
    # was recorded before 0xb was made to wait.
    expected = [(150, 200), (110, 200), (130, 150)]
    assert waits.select("pending_start_ns", "pending_end_ns").rows() == expected


def test_recorded_waits_are_taken_as_they_are(tmp_path, frame):
    file = small_file(tmp_path / "a.db", newest=True)
    file.queue(17, "Queue 1")
    file.call("hipEventRecord", 3, 40, 50, event="0xe", stream="0xa")
    file.call("hipStreamWaitEvent", 4, 60, 70, stream="0xb", event="0xe")
    record = {"handle": 0xE, "queue": 16, "stream": 3}
    file.hip_event("HIP_EVENT_RECORD", 3, 100, 110, **record)
    file.hip_event("HIP_EVENT_WAIT", 4, 90, 120, handle=0xE, queue=17, stream=4, source_queue=16)
    file.hip_event("HIP_EVENT_RECORD", 9, 200, 210, **record)

    trace = read(file.save())

    expected = """
        wait_id process_id waiting_stream_id waiting_queue_id recording_stream_id recording_queue_id wait_call_id record_call_id pending_start_ns pending_end_ns evidence
        0       0          4                 2                3                   1                  1            0              90               120            recorded
    """
    assert_frame_equal(trace.table("waits"), frame("waits", expected))
    assert "rocpd.waits-not-recorded" not in counts(trace)
