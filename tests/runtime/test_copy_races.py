"""Which copies the oracle calls racy, in programs small enough to tell by hand."""

from copy_races import Site, all_copies, racy_copies
from programs import Capture, Copy, CopyAsync, EndCapture, Launch, Program, Record, Replay, Wait

STREAMS = ("null", "nonblocking", "nonblocking")
BUFFERS = ("device", "device", "pinned")
SITE = Site(1, 0, 2)


def racy(*instructions, streams=STREAMS):
    return racy_copies(Program(streams, BUFFERS, instructions))


def test_a_copy_on_another_stream_races_with_a_kernel_that_reads_its_destination():
    assert racy(Launch(1, reads=(0,)), CopyAsync(0, 2, 2)) == {SITE}


def test_it_does_not_on_the_same_stream_or_into_other_memory():
    assert racy(Launch(1, reads=(0,)), CopyAsync(0, 2, 1)) == set()
    assert racy(Launch(1, reads=(1,)), CopyAsync(0, 2, 2)) == set()


def test_a_wait_for_the_readers_event_orders_it():
    ordered = (Launch(1, reads=(0,)), Record(0, 1), Wait(0, 2), CopyAsync(0, 2, 2))
    assert racy(*ordered) == set()


def test_a_blocking_copy_races_with_a_nonblocking_stream_and_not_with_a_blocking_one():
    program = (Launch(1, reads=(0,)), Copy(0, 2))
    assert racy(*program) == {SITE}
    assert racy(*program, streams=("null", "blocking")) == set()


def test_a_copy_in_a_graph_is_named_by_its_replay_and_races_with_work_outside_only():
    program = Program(
        STREAMS,
        BUFFERS,
        (Capture(0, 1), CopyAsync(0, 2, 1), EndCapture(), Launch(2, reads=(0,)), Replay(0, 1)),
    )
    assert all_copies(program) == racy_copies(program) == {Site(4, 0, 2)}
