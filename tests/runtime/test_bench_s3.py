"""Compressors on side streams: published figures out of the mechanism, which moves with it."""

import re
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from instrumented_runtime.bench import s3
from instrumented_runtime.bench.published import OVERLAP, PROFILE_OFF, PROFILE_ON, StreamProfile
from instrumented_runtime.bench.stream_profile import Profile, all_reduce_skew

# The device repeats itself.
MODEL = replace(s3.MODEL, cycles=3)
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "engine.md").read_text()
# 41 compressors of 6 and 4 µs, 21 indexers' of 5 µs; the time of both is a multiple of this.
COMPRESSORS_MS = (41 * (6_000 + 4_000) + 21 * 5_000) / 1e6
# Kernels of a step: 43 layers of 17, 41 with a compressor of 2, 21 with an indexer of 3, and 11.
KERNELS = 43 * 17 + 41 * 2 + 21 * 3 + 11


@pytest.fixture(scope="module")
def rows():
    return {(row.row, row.metric): row for row in s3.rows(lambda _: None, MODEL)}


def with_costs(**options):
    return replace(MODEL, costs=replace(MODEL.costs, **options))


def ms(model, batch, *, is_on):
    return model.run(batch, is_on=is_on).cycle_ms


def change_percent(model, batch):
    return (ms(model, batch, is_on=True) / ms(model, batch, is_on=False) - 1) * 100


def test_changes_lie_within_two_and_a_half_points(rows):
    for known in OVERLAP:
        row = rows[f"concurrency {known.concurrency}", "change of TPOT, %"]
        # Published are rounded figures, from rounded ones.
        assert row.published == pytest.approx((known.on_ms / known.off_ms - 1) * 100, abs=0.1)
        assert row.ours == pytest.approx(row.published, abs=2.5)


def test_the_profile_with_overlap_lies_within_three_per_cent(rows):
    for metric, published in (
        ("main stream busy, ms", PROFILE_ON.main_busy_ms),
        ("side streams busy, ms", PROFILE_ON.side_busy_ms),
        ("concurrency", PROFILE_ON.concurrency),
        ("wall, ms", PROFILE_ON.wall_ms),
    ):
        assert rows["profile, on", metric].published == published
        assert rows["profile, on", metric].ours == pytest.approx(published, rel=0.03)


def test_fitted_figures_are_nearly_exact_and_times_per_token_within_six_per_cent(rows):
    for (row, metric), of in rows.items():
        if of.kind == "fitted":
            assert of.ours == pytest.approx(of.published, rel=0.002), (row, metric)
        elif metric.endswith("TPOT ms"):
            assert of.ours == pytest.approx(of.published, rel=0.06), (row, metric)


def test_only_what_a_constant_was_chosen_for_is_called_fitted(rows):
    assert {key for key, row in rows.items() if row.kind == "fitted"} == {
        ("concurrency 1", "off, TPOT ms"),
        ("concurrency 1", "on, TPOT ms"),
        ("concurrency 1", "change of TPOT, %"),
        ("concurrency 8", "off, TPOT ms"),
        ("concurrency 32", "off, TPOT ms"),
        ("profile, off", "main stream busy, ms"),
        ("profile, off", "wall, ms"),
    }


def test_forks_are_counted_by_side_streams_of_layers():
    # 41 layers fork for a compressor, 21 of them once more for the indexer's.
    assert s3.FORKS_PER_LAYER == (41 + 21) / 41
    assert MODEL.forks_per_layer == s3.FORKS_PER_LAYER


def test_without_overlap_everything_is_on_one_stream_and_nothing_beside_it(rows):
    assert rows["profile, off", "side streams busy, ms"].ours == 0
    assert rows["profile, off", "concurrency"].ours == PROFILE_OFF.concurrency == 1


def test_without_ordering_edges_the_same_code_is_slower_than_none(rows):
    for known in OVERLAP:
        row = rows[f"concurrency {known.concurrency}", "change without ordering edges, %"]
        assert row.ours > 5
    assert rows["on, no ordering edges", "all-reduce longer, 8 ranks, %"].ours == pytest.approx(
        40, abs=10
    )


def test_edges_matter_only_where_something_waits():
    polled = replace(MODEL, ordering_edges=False)
    assert ms(polled, 4, is_on=False) == ms(MODEL, 4, is_on=False)
    on, slow = (model.profile(4, is_on=True) for model in (MODEL, polled))
    # Steps are queued ahead, so that a side stream always waits for the next fork.
    assert set((slow.gaps_ns - on.gaps_ns)[on.is_all_reduce].tolist()) == {1_344}
    slower_ms = slow.streams.wall_ms - on.streams.wall_ms
    # A few more dispatches are the scheduler's.
    main_kernels = KERNELS - 41 * 2 - 21
    assert slower_ms == pytest.approx(main_kernels * 1_344 / 1e6, rel=0.03)


def test_without_contention_kernels_take_as_long_beside_each_other_as_alone():
    model = with_costs(contention=0.0)
    off, on = (model.profile(32, is_on=is_on).streams for is_on in (False, True))
    compressors_ms = COMPRESSORS_MS * model.costs.compressor_scale
    assert on.side_busy_ms == pytest.approx(compressors_ms, rel=1e-3)
    assert off.main_busy_ms - on.main_busy_ms == pytest.approx(compressors_ms, rel=1e-3)
    # Then side streams would still pay at concurrency 32, where they were seen not to.
    assert change_percent(model, 32) < change_percent(MODEL, 32) - 2
    assert change_percent(model, 32) < 0.5 - 2.5


def test_the_page_makes_a_table_without_contention_and_says_what_is_in_it(capsys):
    (example,) = re.findall(r"^    from dataclasses.*?(?=^\S)", PAGE, re.DOTALL | re.MULTILINE)
    exec(dedent(example), {})
    printed = capsys.readouterr().out
    (side_ms,) = re.findall(
        r"'profile, on', metric='side streams busy, ms'.*ours=([\d.]+)", printed
    )
    (change,) = re.findall(r"'concurrency 32', metric='change of TPOT, %'.*ours=([-\d.]+)", printed)
    assert f"busy for {float(side_ms):.0f} ms only" in PAGE
    assert f"at concurrency 32 too, −{-float(change):.1f} %" in PAGE


def test_contention_grows_with_the_batch_and_there_is_none_at_batch_1():
    free = with_costs(contention=0.0)
    assert ms(free, 1, is_on=True) == ms(MODEL, 1, is_on=True)
    lost = [ms(MODEL, batch, is_on=True) - ms(free, batch, is_on=True) for batch in (4, 8, 16, 32)]
    assert lost == sorted(lost)
    assert lost[0] > 0.03


@pytest.mark.parametrize("scale", [0.0, s3.MODEL.costs.compressor_scale])
def test_at_batch_1_it_saves_the_compressors_and_their_gaps_and_costs_a_gap_a_fork_and_join(scale):
    model = with_costs(compressor_scale=scale)
    gap_ns = model.graph_dispatch_ns
    saved_ns = COMPRESSORS_MS * 1e6 * scale + (41 * 2 + 21) * gap_ns
    # 41 layers fork and join one side stream, 21 of them a second one.
    cost_ns = 2 * (41 + 21) * gap_ns
    change_ns = (ms(model, 1, is_on=True) - ms(model, 1, is_on=False)) * 1e6
    assert change_ns == pytest.approx(cost_ns - saved_ns, abs=300)


def test_on_one_hardware_queue_side_streams_only_cost():
    one = replace(MODEL, hw_queues=1)
    assert one.profile(4, is_on=True).streams.concurrency == 1
    assert change_percent(one, 4) > 1


def test_one_side_stream_takes_both_compressors_and_is_worth_nearly_as_much():
    free = with_costs(contention=0.0)
    one, two = (
        replace(free, side_streams=count).profile(4, is_on=True).streams for count in (1, 2)
    )
    assert one.side_busy_ms == pytest.approx(two.side_busy_ms, rel=1e-6)
    assert change_percent(replace(MODEL, side_streams=1, forks_per_layer=1), 4) < -4


def test_side_streams_beyond_the_second_have_nothing_to_do():
    four = replace(MODEL, side_streams=4)
    assert ms(four, 4, is_on=True) == ms(MODEL, 4, is_on=True)


def profile(gaps_us, reduces):
    gaps = np.array(gaps_us) * 1_000
    return Profile(
        StreamProfile(0, 0, 1, 0), gaps, np.full(len(gaps), 10_000), np.array(reduces, bool)
    )


def test_an_all_reduce_waits_for_the_last_of_the_ranks():
    without = profile([1, 1, 1, 1], [0, 1, 0, 1])
    # One dispatch in each half is delayed by 3 µs on average: of 0 to 6 µs the largest of 8 is 8/9
    # on average, so 7/9 of 3 µs more than the mean.
    delayed = profile([4, 1, 1, 4], [0, 1, 0, 1])
    assert all_reduce_skew(without, delayed) == pytest.approx(3 * 7 / 9 / 10, rel=0.2)
    assert all_reduce_skew(without, without) == 0
    assert all_reduce_skew(without, delayed, ranks=1) == 0
