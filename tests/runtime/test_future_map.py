"""What one step leaves for the next: by row, after the right wait, and taken once."""

import pytest
from engine_runs import (
    POLICIES,
    device_of,
    engine_of,
    expected_outputs,
    outputs,
    prompt_of,
    recorded,
    serve_six,
    six_requests,
    within,
)

from instrumented_runtime import engine as engine_module
from instrumented_runtime import launcher
from instrumented_runtime.marks import Marks
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.request import Request
from instrumented_runtime.scheduling.future_map import DecodeInputs, FutureMap, FutureMapError
from instrumented_runtime.scheduling.stream_policy import StreamPolicy
from instrumented_runtime.transfers import HostCopy, Upload

TAKEN_TWICE = "a row was read again before anything was published to it"


class Desk:
    """A future map of 5 rows with both streams, and lists on the host for its buffers."""

    def __init__(self, policy="forward-stream", *, needs_cpu_seq_lens=False, **options):
        self.device = MarkedDevice(device_of(), Marks())
        self.forward = self.device.stream("forward")
        stream_policy = StreamPolicy(policy)
        self.schedule = stream_policy.place(self.forward, lambda: self.device.stream("schedule"))
        copy = None
        if needs_cpu_seq_lens:
            copy = HostCopy(self.device, [4], "seq_lens_host", has_tensors=True)
        options = {"is_speculative": True, "seq_lens_copy": copy, "tails_at": (3, 2), **options}
        self.map = FutureMap(self.device, 5, stream_policy, **options)
        self.map.reset(self.forward)
        self.batch = DecodeInputs(*(self.device.allocate([4], "int64", n) for n in ("r", "s")))

    def buffer(self, values, stream=None):
        upload = Upload(self.device, [len(values)], "values", has_tensors=True)
        upload.start(values, stream or self.forward)
        return upload.target

    def read(self, buffer):
        copy = HostCopy(self.device, [buffer.size_bytes // 8], "read", has_tensors=True)
        self.device.device.synchronize()
        copy.start(buffer, self.forward)
        return copy.wait().tolist()

    def set_batch(self, rows, batch_size=None):
        self.batch.rows = self.buffer([*rows, 0, 0, 0, 0][:4], self.schedule)
        self.batch.batch_size = len(rows) if batch_size is None else batch_size

    def publish(self, rows, lengths, batch_size=None):
        count = len(rows) if batch_size is None else batch_size
        self.map.publish(self.buffer(rows), self.buffer(lengths), count, self.forward)

    def stash(self, rows, tokens, batch_size=None):
        count = len(rows) if batch_size is None else batch_size
        self.map.stash(self.buffer(rows), self.buffer(tokens), count, self.forward)

    def resolve(self, rows, batch_size=None):
        """Return the lengths of rows, up to four."""
        self.set_batch(rows, batch_size)
        self.map.resolve_seq_lens_cpu(self.batch, self.schedule)
        return self.read(self.batch.seq_lens)


@pytest.mark.parametrize("is_checked", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_lengths_come_out_by_row_as_they_went_in(policy, is_checked):
    desk = Desk(policy, is_checked=is_checked)
    desk.publish([3, 1, 4], [70, 12, 5])
    assert desk.resolve([4, 3, 0, 0], 2) == [5, 70, 0, 0]
    desk.publish([3, 4, 0, 0], [73, 6, 99, 98], 2)
    # Row 1 was published before the last step, and nobody has taken it yet.
    assert desk.resolve([1, 4, 3, 0], 3) == [12, 6, 73, 0]


def test_tokens_lie_by_row_and_only_those_of_the_step_are_replaced():
    desk = Desk()
    desk.stash([3, 1], [500, 17])
    desk.stash([1, 0, 0, 0], [18, 7, 7, 7], 1)
    assert desk.read(desk.map.output_tokens)[1:] == [18, 0, 500, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_rank_without_requests_does_nothing_and_announces_nothing(policy):
    desk = Desk(policy, is_checked=True, needs_cpu_seq_lens=True)
    rows, lengths = desk.buffer([1, 2]), desk.buffer([7, 8])
    tails = (desk.buffer([5] * 4), desk.buffer([6] * 4), desk.buffer([7] * 4))
    before = desk.device.device.now_ns
    desk.map.publish(rows, lengths, 0, desk.forward)
    desk.map.stash(rows, lengths, 0, desk.forward)
    desk.map.resolve_seq_lens_cpu(desk.batch, desk.schedule)
    desk.map.resolve_mixed_spec_tails(desk.batch, tails, desk.forward)
    # Any call would have taken the host some time.
    assert desk.device.device.now_ns == before
    assert desk.map.publish_ready is None
    assert desk.batch.seq_lens_cpu is None
    with pytest.raises(FutureMapError, match="no step announced since the last resolve"):
        desk.resolve([1])


def test_to_resolve_nothing_leaves_what_was_announced_to_who_comes_next():
    desk = Desk(is_checked=True)
    desk.publish([1, 2], [7, 8])
    desk.resolve([0, 0], 0)
    desk.publish([0, 0], [1, 1], 0)
    assert desk.resolve([2, 1]) == [8, 7, 0, 0]


def test_what_was_announced_is_resolved_once():
    desk = Desk(is_checked=True)
    desk.publish([1, 2], [7, 8])
    desk.resolve([1])
    with pytest.raises(FutureMapError, match="publish has to record its event"):
        desk.resolve([2])


@pytest.mark.parametrize("row", [1, 3])
def test_a_row_that_was_taken_or_never_written_faults_when_it_is_taken(row):
    desk = Desk(is_checked=True)
    desk.publish([1, 2], [7, 8])
    desk.resolve([1])
    desk.publish([2], [9])
    with pytest.raises(RuntimeError, match=TAKEN_TWICE):
        desk.resolve([2, row])


def test_unchecked_a_row_may_be_read_as_often_as_one_likes_and_is_0_at_first():
    desk = Desk()
    assert desk.resolve([1, 2]) == [0, 0, 0, 0]
    desk.publish([1], [7])
    assert [desk.resolve([1, 1]), desk.resolve([1])] == [[7, 7, 0, 0], [7, 0, 0, 0]]


def test_the_padding_row_is_never_taken_and_is_always_0():
    desk = Desk(is_checked=True)
    for length in (7, 8):
        # Padded places of a batch write to it, and read it without end.
        desk.publish([1, 0, 0, 0], [length, 40, 41, 42], 1)
        assert desk.resolve([0, 1, 0, 0], 1) == [0, length, 0, 0]
    desk.publish([1], [9])
    tails = (desk.buffer([5] * 7), desk.buffer([5] * 7), desk.buffer([5] * 6))
    desk.set_batch([1])
    desk.map.resolve_mixed_spec_tails(desk.batch, tails, desk.forward)
    assert [desk.read(tail)[-3:] for tail in tails] == [[0, 0, 0]] * 3


@pytest.mark.parametrize("policy", POLICIES)
def test_who_decodes_beside_a_prefill_is_filled_in_behind_it_and_stays_to_be_taken(policy):
    desk = Desk(policy, is_checked=True)
    desk.publish([2, 4], [30, 7])
    desk.stash([2, 4], [501, 9])
    # Three prompt tokens and two prompts; then up to four requests.
    tokens = [desk.buffer([1] * 7), desk.buffer([1] * 7), desk.buffer([1] * 6)]
    desk.set_batch([4, 2])
    for _ in range(2):
        desk.map.resolve_mixed_spec_tails(desk.batch, tuple(tokens), desk.forward)
    assert desk.read(tokens[0]) == [1, 1, 1, 9, 501, 0, 0]
    assert desk.read(tokens[1]) == [1, 1, 1, 7, 30, 0, 0]
    # Each of them is one longer afterwards.
    assert desk.read(tokens[2]) == [1, 1, 8, 31, 0, 0]
    assert desk.resolve([4, 2]) == [7, 30, 0, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_lengths_are_on_the_host_where_attention_wants_them(policy):
    desk = Desk(policy, needs_cpu_seq_lens=True, is_checked=True)
    desk.publish([3, 1], [70, 12])
    desk.resolve([1, 3])
    assert desk.batch.seq_lens_cpu.tolist() == [12, 70, 0, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_host_has_the_length_of_every_request_before_each_verify(monkeypatch, policy):
    told, known = [], []

    class Noting(FutureMap):
        def resolve_seq_lens_cpu(self, batch, stream):
            super().resolve_seq_lens_cpu(batch, stream)
            told.append(batch.seq_lens_cpu[: batch.batch_size].tolist())
            # In the cache is all but the last token.
            known.append([len(r.prompt) + len(r.output) - 1 for r in engine._scheduler.running])

    monkeypatch.setattr(launcher, "FutureMap", Noting)
    engine = engine_of(policy=policy, needs_cpu_seq_lens=True)
    requests = six_requests()
    engine.run(requests, overlapped=False)
    assert told == known
    assert max(map(len, told)) == 4
    assert outputs(requests) == expected_outputs(requests)


# Of the real engine, which calls the host makes while it resolves, after what published.
WAITS = {
    "host-sync": ["hipEventSynchronize"],
    "event-wait": ["hipStreamWaitEvent"],
    "forward-stream": ["hipStreamWaitEvent"],
}


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_waits_its_own_way_once_a_resolve(tmp_path, policy):
    options = {"policy": policy, "mix_decode": True}
    trace = recorded(tmp_path, serve_six, **options)
    resolved = within(trace, "FutureMap.resolve_seq_lens_cpu")
    tails = within(trace, "FutureMap.resolve_mixed_spec_tails")
    assert len(resolved) > 4
    assert len(tails) > 1
    for calls in resolved:
        assert calls["name"].to_list() == [*WAITS[policy], "hipLaunchKernel"]
        assert calls["op"].to_list() == [None, "gather_seq_lens"]
    for calls in tails:
        assert calls["name"].to_list() == [*WAITS[policy], "hipLaunchKernel"]
        assert calls["op"].to_list() == [None, "resolve_mixed_tails"]


@pytest.mark.parametrize("policy", POLICIES)
def test_for_lengths_on_the_host_it_waits_under_any_policy(tmp_path, policy):
    options = {"policy": policy, "needs_cpu_seq_lens": True}
    trace = recorded(tmp_path, serve_six, **options)
    for calls in within(trace, "FutureMap.resolve_seq_lens_cpu"):
        assert calls["name"].to_list() == [
            *WAITS[policy],
            "hipLaunchKernel",
            "hipMemcpyAsync",
            "hipEventRecord",
            "hipEventSynchronize",
        ]


@pytest.mark.parametrize("policy", POLICIES)
def test_without_speculation_nobody_waits_for_lengths(tmp_path, policy):
    options = {"policy": policy, "speculative_tokens": 0, "mix_decode": True}
    trace = recorded(tmp_path, serve_six, **options)
    assert within(trace, "FutureMap.resolve_seq_lens_cpu") == []
    tails = within(trace, "FutureMap.resolve_mixed_spec_tails")
    assert [calls["op"].to_list() for calls in tails] == [["resolve_mixed_tails"]] * len(tails)
    published = within(trace, "FutureMap.publish")
    assert [calls["op"].to_list() for calls in published] == [["publish"]] * len(published)
    assert min(len(tails), len(published)) > 1


@pytest.mark.parametrize("policy", POLICIES)
def test_lengths_are_published_between_verify_and_draft_extend(tmp_path, policy):
    trace = recorded(tmp_path, serve_six, policy=policy)
    verifies, extends, publishes = (
        within(trace, text) for text in ("verify", "draft-extend", "FutureMap.publish")
    )
    assert len(verifies) > 4
    ops = trace.table("ops")
    for verify in verifies:
        publish, extend = (
            next(one for one in some if one["start_ns"][0] > verify["start_ns"][0])
            for some in (publishes, extends)
        )
        assert verify["name"].to_list() == extend["name"].to_list() == ["hipGraphLaunch"]
        assert publish["name"].to_list() == ["hipLaunchKernel", "hipEventRecord"]
        assert publish["end_ns"].max() <= extend["start_ns"].item()
        verified, published, extended = (
            ops.filter(call_id=calls["call_id"][0]) for calls in (verify, publish, extend)
        )
        assert verified["end_ns"].max() <= published["start_ns"].item()
        assert published["end_ns"].item() <= extended["start_ns"].min()


class Unwritten(FutureMap):
    def _write(self, rows, lengths, stream):
        pass


class Unannounced(FutureMap):
    def _announce(self, stream):
        pass


class Unstashed(FutureMap):
    def stash(self, rows, tokens, batch_size, stream):
        pass


class Unwaiting(StreamPolicy):
    def wait(self, device, published, stream):
        pass


def run(policy, *, is_checked):
    """Run six requests on an engine, which a test has broken before."""
    requests = six_requests()
    engine_of(policy=policy, is_checked=is_checked).run(requests)
    return requests


@pytest.mark.parametrize(
    ("broken", "error", "said", "notes"),
    [
        (Unwritten, RuntimeError, TAKEN_TWICE, ["in kernel gather_seq_lens"]),
        (Unstashed, RuntimeError, TAKEN_TWICE, ["in kernel load_batch"]),
        # On the host: no kernel is to blame.
        (Unannounced, FutureMapError, "no step announced since the last resolve", []),
    ],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_that_leaves_nothing_is_found_at_the_first_decode(
    monkeypatch, policy, broken, error, said, notes
):
    monkeypatch.setattr(launcher, "FutureMap", broken)
    engine = engine_of(policy=policy, is_checked=True)
    requests = [Request(number, prompt_of(9, number), 8) for number in range(3)]
    with pytest.raises(error, match=said) as raised:
        engine.run(requests, overlapped=False)
    assert type(raised.value) is error
    assert [note.split(";")[0] for note in getattr(raised.value, "__notes__", [])] == notes
    # What a prefill says is there; what the first verify would have said is not.
    assert [len(request.output) for request in requests] == [1, 1, 1]


@pytest.mark.parametrize(
    ("broken", "policy", "is_right"),
    [
        *((Unwritten, policy, False) for policy in POLICIES),
        *((Unstashed, policy, False) for policy in POLICIES),
        (Unannounced, "host-sync", False),
        (Unannounced, "event-wait", False),
        # Stream order does what the event was for, so that nobody notices.
        (Unannounced, "forward-stream", True),
    ],
)
def test_unchecked_the_same_says_wrong_tokens_or_goes_unnoticed(
    monkeypatch, broken, policy, is_right
):
    monkeypatch.setattr(launcher, "FutureMap", broken)
    requests = run(policy, is_checked=False)
    assert (outputs(requests) == expected_outputs(requests)) == is_right


@pytest.mark.parametrize("policy", ["host-sync", "event-wait"])
def test_without_the_wait_lengths_are_taken_before_they_are_published(monkeypatch, policy):
    monkeypatch.setattr(engine_module, "stream_policy", lambda *_, **__: Unwaiting(policy))
    requests = run(policy, is_checked=False)
    assert outputs(requests) != expected_outputs(requests)
    with pytest.raises(RuntimeError, match=TAKEN_TWICE):
        run(policy, is_checked=True)


def test_on_the_forward_stream_order_is_wait_enough(monkeypatch):
    policy = Unwaiting("forward-stream")
    monkeypatch.setattr(engine_module, "stream_policy", lambda *_, **__: policy)
    requests = run("forward-stream", is_checked=True)
    assert outputs(requests) == expected_outputs(requests)
