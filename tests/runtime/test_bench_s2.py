"""The burst whose last requests an old rule strands."""

from dataclasses import replace

import pytest

from instrumented_runtime.bench import s2
from instrumented_runtime.bench.simulate import burst

# So few new tokens that nothing is done before all that may be are running.
SHORT = {"costs": s2.COSTS, "new": 600}


@pytest.mark.slow
def test_the_published_burst_comes_out_of_the_rule():
    rows = {(row.row, row.metric): row for row in s2.TABLE.rows(lambda _: None)}

    def ours(row, metric):
        return rows[row, metric].ours

    assert (ours("base", "running when it settles"), ours("base", "waiting when it settles")) == (
        253,
        3,
    )
    for arm in ("delayer alone", "both fixes"):
        assert -82 <= ours(arm, "change of TTFT max, %") <= -75
        assert abs(ours(arm, "change of TTFT median, %")) < 1
        assert 7 <= ours(arm, "change of output tok/s, %") <= 10
    # Only the forward stream makes a token quicker, by its share of the cycle.
    assert abs(ours("delayer alone", "change of TPOT median, %")) < 0.1
    assert ours("both fixes", "change of TPOT median, %") == pytest.approx(-0.97, abs=0.3)
    for (row, metric), row_of in rows.items():
        if row_of.published and "change" not in metric:
            assert row_of.ours == pytest.approx(row_of.published, rel=0.04), (row, metric)
    fitted = {(row, metric) for (row, metric), of in rows.items() if of.kind == "fitted"}
    assert fitted == {
        ("base", metric) for metric in ("TTFT max, s", "TTFT median, s", "TPOT median, ms")
    }


@pytest.mark.parametrize(
    ("rule", "min_free_slots", "settled"),
    [
        ("free-slots", None, (253, 3)),
        ("free-slots", 2, (255, 1)),
        ("free-slots", 1, (256, 0)),
        ("free-slots-and-waiting", None, (256, 0)),
    ],
)
def test_the_threshold_decides_how_many_are_stranded(rule, min_free_slots, settled):
    config = replace(s2.burst_config("host-sync", rule), min_free_slots=min_free_slots)
    result = burst(config, **SHORT)
    assert result.settled == settled
    # Those that are stranded wait for a decode of others, all others for prefills only.
    assert (result.ttft_max_s > 20) == (settled[1] > 0)
