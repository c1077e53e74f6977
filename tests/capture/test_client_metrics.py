"""Metrics against figures worked out by hand, and acceptance as each kind of server counts it."""

import polars as pl
import pytest
from sse_server import DONE, Answer, event, serving, text_event

from tracekit.capture.load.client_metrics import client_metrics
from tracekit.capture.load.counters import Counters
from tracekit.capture.load.driving import Driven, Load, drive
from tracekit.capture.load.requests import with_latencies
from tracekit.tables.client import METRICS, REQUESTS

MS = 1_000_000


def requests(*rows):
    """Rows of burst, status, due, sent, chunks, end (all ms), tokens of chunks, output tokens."""
    names = ("burst", "status", "due_ns", "sent_ns", "chunk_ns", "end_ns")
    records = []
    for *times, chunk_tokens, output_tokens in rows:
        record = dict(zip(names, times, strict=True))
        for name in ("due_ns", "sent_ns", "end_ns"):
            record[name] = None if record[name] is None else record[name] * MS
        record["chunk_ns"] = [at * MS for at in record["chunk_ns"]]
        records.append(record | {"chunk_tokens": chunk_tokens, "output_tokens": output_tokens})
    schema = {name: REQUESTS.schema[name] for name in (*records[0],)}
    frame = pl.DataFrame(records, schema=schema)
    problem = pl.when(pl.col("status") == "failed").then(pl.lit("HTTP 503")).alias("problem")
    return REQUESTS.conform(with_latencies(frame.with_columns(problem)))


def driven(frame, before=None, after=None, stopped=None):
    counters = Counters()
    return Driven(
        "traced",
        Load(),
        frame,
        frame.height,
        "wall",
        before or counters,
        after or counters,
        "/flush_cache",
        stopped,
    )


# One burst. a: sent 0, chunks at 100 130 190, last chunk 200, 5 tokens: TTFT 100, ITL 30 60,
# e2e 200, TPOT (200 − 100)/4 = 25. b: due 10, sent 20, chunks 140 160 240, end 240, 7 tokens:
# TTFT 120, ITL 20 80, e2e 220, TPOT 100/6. c: one token: sent 20, chunk and end 320: no TPOT.
# d failed at 400 ms. Duration 0 to 400 ms.
BURST = (
    (0, "ok", 0, 0, [100, 130, 190], 200, [1, 2, 2], 5),
    (0, "ok", 10, 20, [140, 160, 240], 240, [1, 3, 3], 7),
    (0, "ok", 20, 20, [320], 320, [1], 1),
    (0, "failed", 20, 20, [], 400, [], None),
)


def test_latencies_rates_and_concurrency_by_hand():
    metrics = client_metrics(driven(requests(*BURST)))
    ms = {
        name.removesuffix("_ns"): value / MS
        for name, value in metrics.items()
        if name.endswith("_ns") and value is not None
    }
    assert (metrics["planned"], metrics["completed"], metrics["failed"]) == (4, 3, 1)
    assert metrics["failures"] == "1 × HTTP 503"
    # TTFT 100, 120, 300; the percentile at 90 % of three values lies at 120 + 0.8 · 180.
    assert metrics["ttft_n"] == 3
    assert ms["ttft_mean"] == pytest.approx(520 / 3)
    assert (ms["ttft_p50"], ms["ttft_max"]) == (120, 300)
    assert ms["ttft_p90"] == pytest.approx(264)
    assert ms["ttft_p99"] == pytest.approx(120 + 0.98 * 180)
    # ITL 20, 30, 60, 80.
    assert (metrics["itl_n"], ms["itl_p50"], ms["itl_max"]) == (4, 45, 80)
    assert (metrics["tpot_n"], ms["tpot_max"]) == (2, 25)
    assert ms["tpot_mean"] == pytest.approx((25 + 100 / 6) / 2)
    assert (metrics["e2e_n"], ms["e2e_p50"], ms["e2e_max"]) == (3, 220, 300)
    assert (metrics["queued_n"], ms["queued_max"], ms["queued_mean"]) == (4, 10, 2.5)
    assert ms["duration"] == 400
    assert metrics["output_tokens"] == 13
    assert metrics["requests_per_s"] == pytest.approx(7.5)
    assert metrics["output_tokens_per_s"] == pytest.approx(32.5)
    assert metrics["concurrency"] == pytest.approx((200 + 220 + 300) / 400)


def test_every_metric_is_declared_and_every_declared_one_is_there():
    assert list(client_metrics(driven(requests(*BURST)))) == list(METRICS)
    nothing = client_metrics(driven(REQUESTS.empty()))
    assert list(nothing) == list(METRICS)
    assert {nothing[name] for name in METRICS if name.endswith(("_ns", "_per_s"))} == {None}
    assert (nothing["sent"], nothing["ttft_n"], nothing["concurrency"]) == (0, 0, None)


# Two requests, steps of 10 ms that yield 2 tokens each. The last first chunk is at 120, the first
# last one at 150: 30 ms, 3 steps, in which each gets 3 chunks and 6 tokens.
DECODING = (
    (0, "ok", 0, 0, [100, 110, 120, 130, 140, 150], 150, [1, 2, 2, 2, 2, 2], 11),
    (0, "ok", 0, 0, [120, 130, 140, 150, 160], 160, [1, 2, 2, 2, 2], 9),
)
OURS = {"clock": "wall", "num_verifies": 100, "num_verified_tokens": 250}
OURS_AFTER = {"clock": "wall", "num_verifies": 109, "num_verified_tokens": 268}


def test_cycles_are_counted_where_every_request_decodes():
    metrics = client_metrics(
        driven(requests(*DECODING), Counters("ours", OURS), Counters("ours", OURS_AFTER))
    )
    # 18 tokens of 9 verifies, whatever the server did in its life before.
    assert metrics["acceptance_length"] == 2
    assert metrics["decode_window_ns"] == 30 * MS
    assert (metrics["decode_tokens"], metrics["decode_batch"]) == (12, 2)
    assert metrics["decode_tokens_per_s"] == pytest.approx(400)
    assert metrics["verify_cycles_per_s"] == pytest.approx(100)
    assert metrics["cycle_ns"] == pytest.approx(10 * MS)


def test_bursts_are_added_up_without_the_pause_between_them():
    later = tuple(
        (1, "ok", due + 9000, sent + 9000, [at + 9000 for at in chunks], end + 9000, tokens, n)
        for _, _, due, sent, chunks, end, tokens, n in DECODING
    )
    metrics = client_metrics(
        driven(requests(*DECODING, *later), Counters("ours", OURS), Counters("ours", OURS_AFTER))
    )
    assert metrics["duration_ns"] == 320 * MS
    assert metrics["decode_window_ns"] == 60 * MS
    assert metrics["decode_tokens_per_s"] == pytest.approx(400)
    assert metrics["verify_cycles_per_s"] == pytest.approx(100)


def test_without_counts_of_chunks_tokens_are_spread_and_it_says_so():
    unknown = tuple((*row[:6], [None] * len(row[4]), row[7]) for row in DECODING)
    metrics = client_metrics(driven(requests(*unknown)))
    # 3 of 6 chunks of 11 tokens, 3 of 5 chunks of 9.
    assert metrics["decode_tokens"] == pytest.approx(11 / 2 + 27 / 5)
    assert "evenly" in metrics["decode_tokens_from"]
    assert metrics["verify_cycles_per_s"] is None
    # Without an acceptance length, a chunk of each request is taken for a cycle, and it says so.
    assert metrics["cycle_ns"] == pytest.approx(10 * MS)
    assert "chunks" in metrics["cycle_from"]


def test_a_burst_that_never_decodes_all_at_once_has_no_cycles():
    metrics = client_metrics(
        driven(
            requests(
                (0, "ok", 0, 0, [10, 20], 20, [1, 1], 2),
                (0, "ok", 0, 20, [30, 40], 40, [1, 1], 2),
            )
        )
    )
    assert metrics["decode_tokens_per_s"] is metrics["cycle_ns"] is None
    assert "no burst" in metrics["cycle_from"]


def acceptance_of(kind, before, after, metrics_before=None, metrics_after=None, frame=None):
    told = client_metrics(
        driven(
            requests(*DECODING) if frame is None else frame,
            Counters(kind, before, metrics_before),
            Counters(kind, after, metrics_after),
        )
    )
    return told["acceptance_length"], told["acceptance_from"]


def test_acceptance_is_differenced_or_null_with_its_reason():
    lifetime = {"internal_states": [{"avg_spec_accept_length": 3.1}], "speculative_algorithm": "E"}
    length, why = acceptance_of("sglang", lifetime, lifetime)
    assert length is None
    assert "lifetime" in why
    prefix = "sglang:"
    length, why = acceptance_of(
        "sglang",
        lifetime,
        lifetime,
        {f"{prefix}spec_verify_calls_total": 10, f"{prefix}generation_tokens_total": 50},
        {f"{prefix}spec_verify_calls_total": 18, f"{prefix}generation_tokens_total": 70},
    )
    assert length == 20 / 8
    told = requests(*DECODING).with_columns(num_verifies=pl.lit(5))
    assert acceptance_of("sglang", lifetime, lifetime, frame=told)[0] == 20 / 10
    plain = {"internal_states": [{}], "speculative_algorithm": None}
    assert acceptance_of("sglang", plain, plain)[0] == 1
    drafts, accepted = "num_drafts_total", "num_accepted_tokens_total"
    before = {f"vllm:spec_decode_{drafts}": 100.0, f"vllm:spec_decode_{accepted}": 20.0}
    after = {f"vllm:spec_decode_{drafts}": 110.0, f"vllm:spec_decode_{accepted}": 35.0}
    assert acceptance_of("vllm", {}, {}, before, after)[0] == 2.5
    assert acceptance_of("vllm", {}, {}, {"vllm:x": 0.0}, {"vllm:x": 0.0})[0] == 1
    assert acceptance_of("vllm", {}, {}, before, before)[0] is None
    assert acceptance_of("unknown", {}, {})[0] is None


def test_a_load_that_was_stopped_has_no_acceptance():
    stopped = driven(
        requests(*DECODING), Counters("ours", OURS), Counters("ours", OURS_AFTER), "interrupted"
    )
    metrics = client_metrics(stopped)
    assert metrics["acceptance_length"] is None
    assert "interrupted" in metrics["acceptance_from"]


VLLM_PAGE = b"""# HELP vllm:spec_decode_num_drafts_total Drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} %d.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 1e1
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} %d.0
vllm:num_requests_running{engine="0"} NaN
"""


def test_counters_come_from_the_server_itself():
    pages = iter([VLLM_PAGE % (90, 20), VLLM_PAGE % (100, 35)])
    answer = Answer([(0, text_event("a", 1)), (0.01, text_event("b", 2, "length")), (0, DONE)])
    with serving(lambda _n, _b: answer, metrics=lambda _b: next(pages)) as server:
        told = drive(Load(requests=1, bursts=1), server.url, phase="traced")
    assert (told.before.kind, client_metrics(told)["acceptance_length"]) == ("vllm", 2.5)


def test_sglang_is_asked_for_the_verifies_of_each_request():
    ends = event(choices=[], sglext={"spec_tokens_details": {"spec_verify_ct": 4}})
    answer = Answer([(0, text_event("a", 1)), (0.01, text_event("b", 10, "length") + ends + DONE)])
    info = {"internal_states": [{"avg_spec_accept_length": 9.9}], "speculative_algorithm": "EAGLE"}
    with serving(lambda _n, _b: answer, server_info=info) as server:
        told = drive(Load(requests=2, bursts=1), server.url, phase="traced")
    (body, _) = [body for _, path, body, _ in server.requests if path == "/v1/completions"]
    assert body["return_spec_tokens_details"] is True
    assert client_metrics(told)["acceptance_length"] == 2.5
