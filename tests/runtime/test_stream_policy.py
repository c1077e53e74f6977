"""Which way of waiting is taken, and on which stream the scheduler then works."""

import pytest
from engine_runs import engine_of
from in_order_device import InOrderDevice, InOrderStream

from instrumented_runtime.scheduling.stream_policy import StreamPolicy, stream_policy


@pytest.mark.parametrize(
    ("platform", "has_overlap", "is_speculative", "pipeline_parallel_size", "chosen"),
    [
        ("hip", True, True, 1, "forward-stream"),
        ("hip", True, True, 2, "host-sync"),
        ("hip", False, True, 1, "host-sync"),
        ("hip", False, True, 2, "host-sync"),
        # Nothing is published that anybody waits for.
        ("hip", True, False, 1, "event-wait"),
        ("hip", True, False, 2, "event-wait"),
        ("hip", False, False, 1, "event-wait"),
        ("hip", False, False, 2, "event-wait"),
        # A pending wait costs nothing.
        ("cuda", True, True, 1, "event-wait"),
        ("cuda", True, True, 2, "event-wait"),
        ("cuda", False, True, 1, "event-wait"),
        ("cuda", False, True, 2, "event-wait"),
        ("cuda", True, False, 1, "event-wait"),
        ("cuda", True, False, 2, "event-wait"),
        ("cuda", False, False, 1, "event-wait"),
        ("cuda", False, False, 2, "event-wait"),
    ],
)
def test_auto_is_decided_by_what_the_engine_is(
    platform, has_overlap, is_speculative, pipeline_parallel_size, chosen
):
    of = {
        "platform": platform,
        "has_overlap": has_overlap,
        "is_speculative": is_speculative,
        "pipeline_parallel_size": pipeline_parallel_size,
    }
    assert stream_policy("auto", **of).name == chosen
    for name in ("host-sync", "event-wait"):
        assert stream_policy(name, **of).name == name
    engine = engine_of(
        InOrderDevice(platform),
        has_overlap=has_overlap,
        speculative_tokens=5 if is_speculative else 0,
        pipeline_parallel_size=pipeline_parallel_size,
    )
    assert engine.policy.name == chosen


def test_a_policy_that_does_not_exist_is_refused_with_what_does():
    with pytest.raises(ValueError) as raised:
        stream_policy("wait", platform="hip", has_overlap=True, is_speculative=True)
    assert str(raised.value) == (
        "policy: 'wait' is not allowed; give one of host-sync, event-wait, forward-stream, auto"
    )


@pytest.mark.parametrize("platform", ["hip", "cuda"])
@pytest.mark.parametrize("has_overlap", [True, False])
@pytest.mark.parametrize("is_speculative", [True, False])
def test_the_forward_stream_is_shared_where_one_asks_for_it_unless_there_are_several(
    platform, has_overlap, is_speculative
):
    of = {"platform": platform, "has_overlap": has_overlap, "is_speculative": is_speculative}
    assert stream_policy("forward-stream", **of).name == "forward-stream"
    with pytest.raises(ValueError, match="not allowed with pipeline_parallel_size 2; give host-sy"):
        stream_policy("forward-stream", **of, pipeline_parallel_size=2)


def stream_of(handle):
    """Return a stream as torch does, which makes a new object for a handle it gives out again."""
    return InOrderStream("nonblocking", handle=handle)


@pytest.mark.parametrize("drawn", [7, 8])
def test_on_the_forward_stream_the_scheduler_stays_whatever_a_pool_hands_out(drawn):
    forward = stream_of(7)
    place = StreamPolicy("forward-stream").place
    assert place(forward, lambda: stream_of(drawn)) is forward


@pytest.mark.parametrize("name", ["host-sync", "event-wait"])
def test_elsewhere_a_stream_is_drawn_until_it_is_not_the_forwards(name):
    for times in (0, 1, 32, 63):
        drawn = map(stream_of, [7] * times + [8, 9])
        assert StreamPolicy(name).place(stream_of(7), drawn.__next__).handle == 8
        assert next(drawn).handle == 9


@pytest.mark.parametrize("name", ["host-sync", "event-wait"])
def test_a_pool_that_knows_the_forwards_stream_only_is_given_up(name):
    with pytest.raises(RuntimeError, match="no stream but the forward's own in 64 draws"):
        StreamPolicy(name).place(stream_of(7), lambda: stream_of(7))
