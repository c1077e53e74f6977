"""Which reads can see different bytes: programs with known verdicts, and the oracle against all orders."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_order_device import InOrderDevice
from oracle import every_observation, observations, racy
from program_strategies import program_strategy
from programs import (
    NULL,
    Capture,
    Copy,
    CopyAsync,
    DeviceSync,
    EndCapture,
    EventSync,
    HostRead,
    HostWrite,
    Launch,
    Program,
    Read,
    Record,
    Replay,
    StreamSync,
    Wait,
    host_value,
    mix,
    written_value,
)
from run_program import disagreements, run_program

ONE, TWO, THREE = 1, 2, 3


def program_of(streams, buffers, *instructions):
    return Program(("null", *streams.split()), tuple(buffers.split()), instructions)


def racy_instructions(streams, buffers, *instructions):
    """The instructions with a racy read, but for the last reads; random and all orders agree."""
    program = program_of(streams, buffers, *instructions)
    found = racy(observations(program))
    assert found == racy(every_observation(program))
    return sorted({read.instruction for read in found if read.instruction < len(instructions)})


# A plan in device memory, that kernels read and the host rewrites.


def plan_then_replan(flags, *before_replan, reader=ONE):
    return racy_instructions(
        flags,
        "device pageable",
        HostWrite(1),
        Copy(0, 1),
        Launch(reader, reads=(0,)),
        HostWrite(1),
        *before_replan,
        Copy(0, 1),
    )


def test_a_blocking_copy_of_the_next_plan_races_with_kernels_on_a_nonblocking_stream():
    assert plan_then_replan("nonblocking") == [2]


def test_a_blocking_copy_is_ordered_with_kernels_on_a_blocking_stream():
    assert plan_then_replan("blocking") == []


def test_a_blocking_copy_is_ordered_with_kernels_on_the_null_stream():
    assert plan_then_replan("nonblocking", reader=NULL) == []


@pytest.mark.parametrize("sync", [StreamSync(ONE), DeviceSync()])
def test_a_synchronisation_before_the_next_plan_orders_it(sync):
    assert plan_then_replan("nonblocking", sync) == []


def test_a_synchronisation_of_the_device_waits_for_every_stream():
    flags = "nonblocking nonblocking nonblocking"
    assert [plan_then_replan(flags, DeviceSync(), reader=each) for each in (1, 2, 3)] == [[]] * 3


def test_a_synchronisation_of_another_stream_does_not_order_the_next_plan():
    assert plan_then_replan("nonblocking nonblocking", StreamSync(TWO)) == [2]
    assert plan_then_replan("nonblocking nonblocking", StreamSync(NULL)) == [2]


def test_synchronising_the_null_stream_waits_for_blocking_streams_too():
    def sent_then_filled_again(flags):
        return racy_instructions(
            flags, "device pinned", CopyAsync(0, 1, ONE), StreamSync(NULL), HostWrite(1)
        )

    assert sent_then_filled_again("blocking") == []
    assert sent_then_filled_again("nonblocking") == [0]


def staged(*before_reuse):
    """Three plans through two pinned slots, each read by a kernel behind its copy."""
    plan, slots = 0, (1, 2)
    send = [
        [
            HostWrite(slots[n % 2]),
            CopyAsync(plan, slots[n % 2], ONE),
            Record(n % 2, ONE),
            Launch(ONE, reads=(plan,)),
        ]
        for n in range(3)
    ]
    return racy_instructions(
        "nonblocking", "device pinned pinned", *send[0], *send[1], *before_reuse, *send[2]
    )


def test_staging_in_two_slots_that_are_reused_after_their_event_is_ordered():
    assert staged(EventSync(0)) == []


def test_a_slot_reused_without_waiting_for_its_event_races():
    assert staged() == [1, 3]


def test_a_slot_reused_after_the_other_slots_event_is_safe_as_the_stream_is_in_order():
    assert staged(EventSync(1)) == []


# Streams and events.


def test_work_in_one_stream_is_ordered_and_work_in_two_is_not():
    assert racy_instructions("blocking", "device", Launch(1, (), (0,)), Launch(1, (0,))) == []
    assert racy_instructions(
        "blocking blocking", "device", Launch(1, (), (0,)), Launch(2, (0,))
    ) == [1]


def handed_over(*calls):
    return racy_instructions("nonblocking nonblocking nonblocking", "device", *calls)


def test_a_wait_orders_what_was_before_the_record_and_nothing_later():
    write, read = Launch(ONE, (), (0,)), Launch(TWO, (0,))
    assert handed_over(write, Record(0, ONE), Wait(0, TWO), read) == []
    assert handed_over(Record(0, ONE), write, Wait(0, TWO), read) == [3]
    assert handed_over(write, Record(0, ONE), read, Wait(0, TWO)) == [2]


def test_a_wait_called_before_any_record_does_nothing():
    write, read = Launch(ONE, (), (0,)), Launch(TWO, (0,))
    assert handed_over(Wait(0, TWO), write, Record(0, ONE), read) == [3]


def test_a_wait_takes_the_last_record_at_its_call_and_no_later_one():
    first, second = Launch(ONE, (), (0,)), Launch(THREE, (), (0,))
    read = Launch(TWO, (0,))
    earlier = [first, Record(0, ONE), Wait(0, TWO)]
    assert handed_over(*earlier, Record(0, THREE), read) == []
    assert handed_over(*earlier, Wait(0, THREE), second, Record(0, THREE), read) == [6]
    assert handed_over(*earlier, Wait(0, THREE), second, Record(0, THREE), Wait(0, TWO), read) == []


def test_waits_order_through_a_third_stream():
    write, read = Launch(ONE, (), (0,)), Launch(TWO, (0,))
    through = [Record(0, ONE), Wait(0, THREE), Record(1, THREE), Wait(1, TWO)]
    assert handed_over(write, *through, read) == []


def test_event_synchronisation_waits_for_the_last_record_only():
    fetch = [Launch(ONE, (), (0,)), CopyAsync(1, 0, ONE)]

    def host_reads_after(*calls):
        return racy_instructions("nonblocking", "device pinned", *calls, HostRead(1))

    assert host_reads_after(*fetch, Record(0, ONE), EventSync(0)) == []
    assert host_reads_after(Record(0, ONE), *fetch, EventSync(0)) == [4]
    assert host_reads_after(*fetch, EventSync(0), Record(0, ONE)) == [4]


# The null stream.


def written_and_read_on(writer, reader, *, between=(), flags="blocking nonblocking blocking"):
    return racy_instructions(
        flags, "device", Launch(writer, (), (0,)), *between, Launch(reader, (0,))
    )


def test_the_null_stream_is_ordered_with_blocking_streams_both_ways_and_with_no_other():
    blocking, nonblocking = ONE, TWO
    assert written_and_read_on(blocking, NULL) == []
    assert written_and_read_on(NULL, blocking) == []
    assert written_and_read_on(nonblocking, NULL) == [1]
    assert written_and_read_on(NULL, nonblocking) == [1]


def test_work_in_the_null_stream_orders_two_blocking_streams():
    assert written_and_read_on(ONE, THREE) == [1]
    assert written_and_read_on(ONE, THREE, between=[Launch(NULL, (0,))]) == []
    assert written_and_read_on(ONE, THREE, between=[Record(0, NULL)]) == []


# Copies.


def test_the_host_reads_what_an_asynchronous_copy_to_pinned_memory_brings_only_after_a_wait():
    fetch = [Launch(ONE, (), (0,)), CopyAsync(1, 0, ONE)]

    def fetched(place, *calls):
        return racy_instructions("nonblocking", f"device {place}", *fetch, *calls, HostRead(1))

    assert fetched("pinned") == [2]
    assert fetched("pinned", StreamSync(ONE)) == []
    assert fetched("pinned", DeviceSync()) == []
    assert fetched("pageable") == []


def test_an_asynchronous_copy_takes_pageable_bytes_at_the_call_and_pinned_ones_when_it_runs():
    def sent_then_overwritten(place):
        send = [HostWrite(1), CopyAsync(0, 1, ONE), HostWrite(1), Launch(ONE, (0,))]
        return racy_instructions("nonblocking", f"device {place}", *send)

    assert sent_then_overwritten("pageable") == []
    assert sent_then_overwritten("pinned") == [1, 3]


def test_a_pageable_source_does_not_make_the_host_wait_for_the_copy():
    send = [CopyAsync(0, 1, ONE), Launch(TWO, (0,))]
    assert racy_instructions("nonblocking nonblocking", "device pageable", HostWrite(1), *send) == [
        2
    ]


def test_a_pageable_destination_makes_the_host_wait_for_that_stream_only():
    calls = [Launch(ONE, (), (0,)), Launch(TWO, (), (1,)), CopyAsync(2, 0, ONE)]
    flags, buffers = "nonblocking nonblocking nonblocking", "device device pageable"
    assert racy_instructions(flags, buffers, *calls, Launch(THREE, (0,))) == []
    assert racy_instructions(flags, buffers, *calls, Launch(THREE, (1,))) == [3]


def test_a_copy_within_the_device_is_ordered_as_a_kernel_is():
    def copied(stream):
        copy = CopyAsync(1, 0, stream)
        return racy_instructions(
            "nonblocking nonblocking", "device device", Launch(1, (), (0,)), copy, Launch(1, (1,))
        )

    assert copied(ONE) == []
    assert copied(TWO) == [1, 2]


def test_a_blocking_copy_makes_the_host_wait():
    calls = [HostWrite(1), Copy(0, 1), HostWrite(1), Launch(ONE, (0,))]
    assert racy_instructions("nonblocking", "device pinned", *calls) == []


# Graphs.


def forked(*then, joined_before_the_reader, replay_stream=ONE):
    """A graph: a branch on stream 2 writes, stream 1 reads."""
    join = [Record(3, TWO), Wait(3, ONE)]
    read = [Launch(ONE, (0,))]
    return [
        Capture(0, ONE),
        Launch(ONE, (), (1,)),
        Record(2, ONE),
        Wait(2, TWO),
        Launch(TWO, (1,), (0,)),
        *([*join, *read] if joined_before_the_reader else [*read, *join]),
        EndCapture(),
        Replay(0, replay_stream),
        *then,
    ]


def test_fork_and_join_order_the_branches_of_a_graph():
    assert (
        racy_instructions(
            "nonblocking nonblocking", "device device", *forked(joined_before_the_reader=True)
        )
        == []
    )


def test_a_branch_that_is_joined_too_late_races():
    assert racy_instructions(
        "nonblocking nonblocking", "device device", *forked(joined_before_the_reader=False)
    ) == [5]


def test_a_replay_is_one_piece_of_work_of_its_stream_and_not_of_the_captured_ones():
    def replayed_on(stream, *then):
        calls = forked(*then, joined_before_the_reader=True, replay_stream=stream)
        return racy_instructions("nonblocking nonblocking nonblocking", "device device", *calls)

    reader = Launch(TWO, (0,))
    assert replayed_on(TWO, reader) == []
    assert replayed_on(THREE, reader) == [10]
    assert replayed_on(THREE, Record(0, THREE), Wait(0, TWO), reader) == []


def test_a_replay_waits_for_what_is_before_it_in_its_stream_and_not_for_the_captured_stream():
    def written_before(stream):
        capture = [Capture(0, ONE), Launch(ONE, (0,)), EndCapture()]
        write = Launch(stream, (), (0,))
        return racy_instructions(
            "nonblocking nonblocking", "device", *capture, write, Replay(0, TWO)
        )

    assert written_before(TWO) == []
    assert written_before(ONE) == [1]


def test_the_null_stream_waits_for_all_of_a_graph_replayed_on_a_blocking_stream():
    def read_on_null(flags):
        calls = forked(Launch(NULL, (0,)), joined_before_the_reader=True)
        return racy_instructions(flags, "device device", *calls)

    assert read_on_null("blocking nonblocking") == []
    assert read_on_null("nonblocking blocking") == [10]


def test_every_replay_reads_anew_and_a_capture_runs_nothing():
    program = program_of(
        "nonblocking",
        "device",
        Capture(0, ONE),
        Launch(ONE, (0,), (0,)),
        EndCapture(),
        Replay(0, ONE),
        Replay(0, ONE),
    )
    first = written_value(1, 0, [0], 0)
    second = written_value(1, 1, [first], 0)
    expected = {Read(1, 0, 0): {0}, Read(1, 1, 0): {first}, Read(5, 0, 0): {second}}
    assert observations(program) == every_observation(program) == expected
    never = Program(program.streams, program.buffers, program.instructions[:3])
    assert observations(never) == {Read(3, 0, 0): {0}}


def test_a_pinned_source_of_a_captured_copy_is_read_by_each_replay():
    capture = [Capture(0, ONE), CopyAsync(0, 1, ONE), EndCapture()]
    refill = [HostWrite(1), Replay(0, ONE), HostWrite(1), Replay(0, ONE)]
    assert racy_instructions("nonblocking", "device pinned", *capture, *refill) == [1]
    refill.insert(2, StreamSync(ONE))
    assert racy_instructions("nonblocking", "device pinned", *capture, *refill) == []


# Overlap.


def test_two_kernels_that_overlap_can_both_read_before_either_writes():
    program = program_of(
        "nonblocking nonblocking", "device", Launch(ONE, (0,), (0,)), Launch(TWO, (0,), (0,))
    )

    def written(instruction, seen):
        return written_value(instruction, 0, [seen], 0)

    one, two = written(0, 0), written(1, 0)
    last = every_observation(program)[Read(2, 0, 0)]
    assert last == {one, two, written(0, two), written(1, one)}
    assert observations(program)[Read(2, 0, 0)] == last


def test_a_kernel_can_see_one_buffer_before_and_one_after_the_kernel_that_writes_both():
    program = program_of(
        "nonblocking nonblocking",
        "device device device",
        Launch(ONE, (), (0, 1)),
        Launch(TWO, (0, 1), (2,)),
    )
    new = [written_value(0, 0, [], position) for position in (0, 1)]
    pairs = [(0, 0), (new[0], 0), (0, new[1]), tuple(new)]
    last = {written_value(1, 0, pair, 0) for pair in pairs}
    assert every_observation(program)[Read(2, 0, 2)] == last
    assert observations(program, 100)[Read(2, 0, 2)] == last


def test_a_read_is_not_racy_where_every_order_brings_the_same_bytes():
    copies = [CopyAsync(0, 2, ONE), CopyAsync(0, 2, TWO), DeviceSync(), Launch(ONE, (0,))]
    flags, buffers = "nonblocking nonblocking", "device device pinned"
    assert racy_instructions(flags, buffers, HostWrite(2), *copies) == []
    copies[1] = CopyAsync(0, 1, TWO)
    assert racy_instructions(flags, buffers, HostWrite(2), *copies) == [4]


# The oracle as a whole.


def test_the_same_seed_gives_the_same_values_and_more_schedules_only_add_some():
    program = program_of(
        "nonblocking nonblocking", "device", Launch(ONE, (), (0,)), Launch(TWO, (0,), (0,))
    )
    some, more = observations(program, 5, seed=3), observations(program, 50, seed=3)
    assert some == observations(program, 5, seed=3)
    assert all(values <= more[read] for read, values in some.items())


@settings(max_examples=150, deadline=None, derandomize=True)
@given(program_strategy(most_instructions=9))
def test_random_orders_show_what_all_orders_show_of_a_tiny_program(program):
    every, some = every_observation(program), observations(program, 200)
    assert racy(some) == racy(every)
    assert all(values <= every[read] for read, values in some.items())


def test_about_half_of_the_programs_are_racy_and_every_instruction_occurs():
    judged, kinds = [], set()

    @settings(max_examples=200, deadline=None, derandomize=True, database=None)
    @given(program_strategy())
    def judge(program):
        judged.append(bool(racy(observations(program))))
        kinds.update(type(each) for each in program.instructions)

    judge()
    assert 0.3 < sum(judged) / len(judged) < 0.7
    assert len(kinds) == 13


def test_a_program_with_too_many_states_is_refused():
    calls = [Launch(stream, (0,), (0,)) for stream in (ONE, TWO, THREE)] * 3
    program = program_of("nonblocking nonblocking nonblocking", "device", *calls)
    with pytest.raises(ValueError, match="more than 1000 states"):
        every_observation(program, most_states=1000)


@pytest.mark.parametrize(
    ("problem", "calls"),
    [
        ("touches device memory", [Launch(ONE, (2,))]),
        ("touches device memory", [Launch(ONE)]),
        ("named twice", [Launch(ONE, (0, 0))]),
        ("of a blocking copy one on the host", [Copy(0, 1)]),
        ("one side is on the device", [CopyAsync(2, 3, ONE)]),
        ("onto itself", [CopyAsync(0, 0, ONE)]),
        ("the host touches host memory", [HostRead(0)]),
        ("at most 4", [Record(event, ONE) for event in range(5)]),
        ("at most 25", [DeviceSync()] * 26),
        ("no capture to end", [EndCapture()]),
        ("ends inside a capture", [Capture(0, ONE)]),
        ("not on the null stream", [Capture(0, NULL)]),
        ("of a new graph", [Capture(0, ONE), EndCapture(), Capture(0, ONE)]),
        ("cannot hold it", [Capture(0, ONE), StreamSync(TWO)]),
        ("copy of pageable memory", [Capture(0, ONE), CopyAsync(0, 3, ONE)]),
        ("not part of the capture", [Capture(0, ONE), Launch(TWO, (0,))]),
        ("waits for events recorded in it", [Capture(0, ONE), Wait(0, ONE)]),
        ("belongs to one capture", [Record(0, ONE), Capture(0, ONE), Record(0, ONE)]),
        ("are not joined", [Capture(0, ONE), Record(0, ONE), Wait(0, TWO), EndCapture()]),
        ("replayed after its capture", [Replay(0, ONE)]),
        ("on one stream", [Capture(0, ONE), EndCapture(), Replay(0, ONE), Replay(0, TWO)]),
    ],
)
def test_what_a_program_may_not_do_is_refused(problem, calls):
    with pytest.raises(ValueError, match=problem):
        program_of("nonblocking nonblocking", "device device pinned pageable", *calls)


# Programs on a device.


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_numbers_and_tensors_are_mixed_alike(state, value):
    tensors = [torch.tensor([each]) for each in (state, value)]
    assert mix(*tensors).item() == mix(state, value)


def test_a_device_shows_kernels_host_reads_and_last_reads():
    program = program_of(
        "nonblocking",
        "device device pinned",
        HostWrite(2),
        CopyAsync(0, 2, ONE),
        Launch(ONE, (0,), (1, 0)),
        CopyAsync(2, 1, ONE),
        StreamSync(ONE),
        HostRead(2),
    )
    sent = host_value(0)
    first, second = (written_value(2, 0, [sent], position) for position in (0, 1))
    assert run_program(program, InOrderDevice()) == {
        Read(2, 0, 0): sent,
        Read(5, 0, 2): first,
        Read(6, 0, 0): second,
        Read(6, 0, 1): first,
        Read(6, 0, 2): first,
    }


@settings(max_examples=100, deadline=None)
@given(program_strategy())
def test_a_device_that_does_everything_at_the_call_never_disagrees(program):
    seen, possible = run_program(program, InOrderDevice()), observations(program)
    copies = {
        number
        for number, each in enumerate(program.instructions)
        if isinstance(each, Copy | CopyAsync)
    }
    assert set(seen) == {read for read in possible if read.instruction not in copies}
    assert disagreements(program, InOrderDevice) == {}


class LateCopies(InOrderDevice):
    """Wrong on purpose: an asynchronous copy runs at the next synchronisation of the device."""

    def __init__(self):
        super().__init__()
        self.late = []

    def copy_async(self, destination, source, stream):
        self.late.append((destination, source))

    def synchronize(self):
        for sides in self.late:
            self.copy(*sides)
        self.late.clear()


def test_a_device_whose_copies_come_too_late_disagrees_where_order_is_certain():
    program = program_of(
        "nonblocking nonblocking",
        "device device pinned",
        HostWrite(2),
        CopyAsync(0, 2, ONE),
        CopyAsync(1, 2, TWO),
        Launch(ONE, (0, 1)),
    )
    assert disagreements(program, LateCopies) == {Read(3, 0, 0): (0, {host_value(0)})}


class TornWrites(InOrderDevice):
    """Wrong on purpose: the last element of device memory written by a kernel stays as it was."""

    def launch(self, kernel, stream, reads=(), writes=()):
        kept = [buffer.tensor[..., -1].clone() for buffer in writes]
        super().launch(kernel, stream, reads, writes)
        for buffer, last in zip(writes, kept, strict=True):
            if buffer.name == "b0":
                buffer.tensor[..., -1] = last


def test_a_buffer_whose_elements_differ_is_seen_as_all_of_them():
    program = program_of("nonblocking", "device", Launch(ONE, (), (0,)), Launch(ONE, (0,)))
    whole = written_value(0, 0, [], 0)
    seen = run_program(program, TornWrites())
    assert seen[Read(1, 0, 0)] == (*[whole] * 7, 0)
    assert set(disagreements(program, TornWrites)) == {Read(1, 0, 0), Read(2, 0, 0)}
