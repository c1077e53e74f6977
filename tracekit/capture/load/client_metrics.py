"""Metrics of a load from its requests, by the definitions of SGLang's serving benchmark.

Nothing is left out in silence: what failed is counted and named, every percentile stands beside how
many values it is of, and a figure that cannot be had is null with its reason. Percentiles are
linear between the two nearest values.
"""

from collections import Counter

import numpy as np
import polars as pl

from tracekit.capture.load.counters import acceptance
from tracekit.capture.load.decoding import Decoding, decoding
from tracekit.capture.load.driving import Driven

MetricValue = float | int | str | None


def client_metrics(driven: Driven) -> dict[str, MetricValue]:
    """Return every metric of `tracekit.tables.client.METRICS`, in its order, for one load."""
    requests = driven.records
    complete = requests.filter(pl.col("status") == "ok")
    spreads = {
        "ttft": complete["ttft_ns"],
        "itl": _gaps(complete),
        "tpot": complete["tpot_ns"],
        "e2e": complete["e2e_ns"],
        "queued": requests["queued_ns"],
    }
    metrics = _counts(driven, requests, complete) | _rates(requests, complete)
    for name, values in spreads.items():
        metrics |= _spread(name, values)
    known = complete.filter(pl.col("num_verifies") > 0)
    length, source = acceptance(
        driven.before,
        driven.after,
        _total(known["num_verifies"]),
        _total(known["output_tokens"]),
    )
    if driven.stopped is not None and length is not None:
        length, source = None, f"the load was stopped ({driven.stopped})"
    return (
        metrics
        | {"acceptance_length": length, "acceptance_from": source}
        | _cycles(decoding(complete), length)
    )


def _counts(
    driven: Driven, requests: pl.DataFrame, complete: pl.DataFrame
) -> dict[str, MetricValue]:
    failed = requests.filter(pl.col("status") == "failed")
    reasons = Counter(failed["problem"]).most_common()
    return {
        "phase": driven.phase,
        "clock": driven.clock,
        "stopped": driven.stopped,
        "cache_flush": driven.cache_flush,
        "planned": driven.num_planned,
        "sent": requests.height,
        "completed": complete.height,
        "failed": failed.height,
        "interrupted": requests.filter(pl.col("status") == "interrupted").height,
        "failures": "; ".join(f"{count} × {reason}" for reason, count in reasons) or None,
    }


def _rates(requests: pl.DataFrame, complete: pl.DataFrame) -> dict[str, MetricValue]:
    """Return sums, and what they are per second of the bursts (not of the pauses between them)."""
    starts = pl.min_horizontal(pl.col("due_ns"), pl.col("sent_ns")).min()
    bursts = requests.group_by("burst").agg(length_ns=pl.col("end_ns").max() - starts)
    duration_ns = _total(bursts["length_ns"])
    output_tokens = _total(complete["output_tokens"])
    e2e_ns = _total(complete["e2e_ns"])

    def per_duration(amount: float | None) -> float | None:
        return None if amount is None or not duration_ns else amount / duration_ns

    completed_per_ns, tokens_per_ns = per_duration(complete.height), per_duration(output_tokens)
    return {
        "duration_ns": duration_ns,
        "prompt_tokens": _total(complete["prompt_tokens"]),
        "cached_tokens": _total(complete["cached_tokens"]),
        "output_tokens": output_tokens,
        "requests_per_s": None if completed_per_ns is None else completed_per_ns * 1e9,
        "output_tokens_per_s": None if tokens_per_ns is None else tokens_per_ns * 1e9,
        "concurrency": per_duration(e2e_ns),
    }


def _total(values: pl.Series) -> int | None:
    """Return a sum; None where nothing is known, which is not zero."""
    known = values.drop_nulls()
    return None if known.is_empty() else int(known.sum())


def _gaps(complete: pl.DataFrame) -> pl.Series:
    """Return the gaps between chunks with content, of each request."""
    gaps = complete.select(pl.col("chunk_ns").list.diff(null_behavior="drop"))
    return gaps.explode("chunk_ns", empty_as_null=False, keep_nulls=False)["chunk_ns"]


def _spread(name: str, values: pl.Series) -> dict[str, MetricValue]:
    known = values.drop_nulls().to_numpy()
    figures: dict[str, MetricValue] = dict.fromkeys(("mean", "p50", "p90", "p99", "max"), None)
    if len(known):
        p50, p90, p99 = map(float, np.percentile(known, [50, 90, 99]))
        mean, longest = float(known.mean()), float(known.max())
        figures = {"mean": mean, "p50": p50, "p90": p90, "p99": p99, "max": longest}
    return {f"{name}_n": len(known)} | {f"{name}_{key}_ns": figures[key] for key in figures}


def _cycles(decoding: Decoding, acceptance_length: float | None) -> dict[str, MetricValue]:
    """Return what happened while every request of a burst decoded."""
    length_s = decoding.length_ns / 1e9
    tokens_per_s = decoding.num_tokens / length_s if length_s and decoding.num_tokens else None
    cycles_per_s, cycle_from = None, decoding.reason
    if tokens_per_s is not None and acceptance_length:
        cycles_per_s = decoding.tokens_per_request / acceptance_length / length_s
        cycle_from = "decode tokens/s ÷ (batch × acceptance length)"
    elif length_s and decoding.chunks_per_request:
        # Where the server sends a chunk per step, this is the same; where it joins steps, less.
        cycle_from = "chunks per request: the acceptance length is not known"
    steps = decoding.chunks_per_request if cycles_per_s is None else cycles_per_s * length_s
    return {
        "decode_batch": decoding.batch,
        "decode_window_ns": decoding.length_ns or None,
        "decode_tokens": decoding.num_tokens,
        "decode_tokens_per_s": tokens_per_s,
        "decode_tokens_from": decoding.tokens_from,
        "verify_cycles_per_s": cycles_per_s,
        "cycle_ns": decoding.length_ns / steps if steps else None,
        "cycle_from": cycle_from,
    }
