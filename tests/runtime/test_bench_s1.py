"""The scheduler's waiting: published figures out of the mechanism, which moves when it is moved."""

from dataclasses import replace

import pytest

from instrumented_runtime.bench import s1
from instrumented_runtime.bench.published import DECODE
from instrumented_runtime.bench.simulate import decode_cycles
from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import VERIFY, Costs

PREPARE_MS = Costs().host_ns["prepare"] / 1e6


@pytest.fixture(scope="module")
def rows():
    return {(row.row, row.metric): row for row in s1.TABLE.rows(lambda _: None)}


def cycle_ms(policy, *, batch=8, prepare_ns=None, **options):
    costs = Costs()
    if prepare_ns is not None:
        costs = replace(costs, host_ns={**costs.host_ns, "prepare": prepare_ns})
    config = EngineConfig(policy=policy, max_running=batch, has_tensors=False)
    return decode_cycles(config, costs=costs, **options).cycle_ms


def test_cycle_times_are_within_three_per_cent_and_fitted_ones_nearly_exact(rows):
    for cell in DECODE:
        for name, published in (("base", cell.base_ms), ("fix", cell.fix_ms)):
            row = rows[f"batch {cell.batch}", f"{name}, ms per verify"]
            assert row.ours == pytest.approx(published, rel=0.03)
            if row.kind == "fitted":
                assert row.ours == pytest.approx(published, rel=0.002)


def test_changes_lie_in_the_published_intervals(rows):
    for cell in DECODE:
        what = "decode tok/s" if cell.batch == 1 else "verify cycles/s"
        row = rows[f"batch {cell.batch}", f"change of {what}, %"]
        assert row.interval == tuple(100 * end for end in cell.interval)
        assert row.interval[0] <= row.ours <= row.interval[1]


def test_only_what_a_constant_was_chosen_for_is_called_fitted(rows):
    fitted = {(row.row, row.metric.split(",")[0]) for row in rows.values() if row.kind == "fitted"}
    # What else is known of batch 1 follows from its two cycles and the tokens per verify.
    assert fitted == {
        ("512-kernel graph", "alone"),
        ("512-kernel graph", "wait pending elsewhere"),
        ("batch 1", "base"),
        ("batch 1", "fix"),
        ("batch 1", "change of decode tok/s"),
        ("batch 8", "fix"),
        ("batch 64", "fix"),
        ("all batches", "tokens per verify"),
    }


def test_a_verify_under_event_wait_is_longer_by_what_its_dispatches_cost(rows):
    # 43 layers of 17 kernels; 41 with a compressor of 2, of which 21 with an indexer of 3; 11 more.
    assert len(VERIFY) == 43 * 17 + 41 * 2 + 21 * 3 + 11
    longer = rows["verify", "longer under event-wait, ms"].ours
    assert longer == pytest.approx(1.2, abs=0.2)
    # The first dispatch is before the graph's first kernel starts.
    assert longer == pytest.approx((len(VERIFY) - 1) * 1_344 / 1e6, rel=1e-3)


def test_throughput_at_batch_1_follows_from_cycle_and_acceptance(rows):
    for name, published in (("base", 351.7), ("fix", 375.2)):
        assert rows["batch 1", f"{name}, decode tok/s"].ours == pytest.approx(published, rel=0.02)


def test_tokens_per_verify_are_within_five_hundredths(rows):
    assert rows["all batches", "tokens per verify"].ours == pytest.approx(3.23, abs=0.05)


@pytest.mark.parametrize("batch", [1, 8, 32, 64])
def test_event_wait_makes_every_cycle_longer_by_what_it_makes_the_verify(rows, batch):
    waiting = rows[f"batch {batch}", "event-wait, ms per verify"].ours
    fix = rows[f"batch {batch}", "fix, ms per verify"].ours
    assert waiting - fix == pytest.approx(1.2, abs=0.2)


@pytest.mark.parametrize("batch", s1.UNSPECULATIVE_BATCHES)
def test_without_speculation_to_move_the_scheduler_costs_a_little(rows, batch):
    change = rows[f"no speculation, batch {batch}", "change of TPOT, %"].ours
    assert 0.1 <= change <= 0.5


def test_twice_the_preparation_is_exposed_once_more_and_only_where_the_host_blocks():
    host_sync, forward = cycle_ms("host-sync"), cycle_ms("forward-stream")
    twice = {"prepare_ns": round(2 * PREPARE_MS * 1e6)}
    assert cycle_ms("host-sync", **twice) - host_sync == pytest.approx(PREPARE_MS, rel=0.01)
    assert cycle_ms("forward-stream", **twice) == pytest.approx(forward, rel=1e-4)


def test_without_preparation_blocking_costs_next_to_nothing():
    gap = cycle_ms("host-sync", prepare_ns=0) - cycle_ms("forward-stream", prepare_ns=0)
    assert gap < 0.1


def test_without_overlap_no_policy_hides_the_preparation():
    host_sync, forward = (
        cycle_ms(policy, has_overlap=False) for policy in ("host-sync", "forward-stream")
    )
    assert host_sync == pytest.approx(forward, rel=1e-3)
    assert forward - cycle_ms("forward-stream") > PREPARE_MS


def test_a_pending_wait_that_costs_nothing_makes_event_wait_as_good_as_the_forward_stream():
    free = {"timing": {"pending_wait_dispatch_ns": 0}}
    forward = cycle_ms("forward-stream", device=free)
    assert cycle_ms("event-wait") > 1.05 * forward
    assert cycle_ms("event-wait", device=free) == pytest.approx(forward, rel=0.005)


def test_with_ordering_edges_event_wait_no_longer_loses_to_a_host_that_blocks_but_wins():
    edges = {"ordering_edges": True}
    assert cycle_ms("event-wait") > cycle_ms("host-sync") + 0.5
    assert cycle_ms("event-wait", device=edges) < cycle_ms("host-sync", device=edges) - 0.5


def test_on_one_hardware_queue_no_wait_is_pending_elsewhere():
    one = {"max_hw_queues": 1}
    assert cycle_ms("event-wait", device=one) < cycle_ms("event-wait") - 1
