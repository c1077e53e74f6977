"""What a client saw: one row per request that the load generator sent, and the metrics of a load.

Times are those of the load's clock: the machine's (nanoseconds since 1970, measured with a
monotonic clock) or, of a server on the virtual device, the device's own.
"""

from dataclasses import dataclass

import polars as pl

from tracekit.tables import Column, Table, enum_column, text_column, time_column
from tracekit.units import Unit

STATUSES = ("ok", "failed", "interrupted")

REQUESTS = Table(
    "requests",
    "one request that the load generator sent",
    (
        text_column("phase", "Part of the capture: warm_up, untraced, traced."),
        text_column("rid", "Name of the request, unique within its phase."),
        Column("burst", pl.Int64(), "Burst it belongs to, from 0.", Unit.ID),
        enum_column(
            "status",
            STATUSES,
            "failed: see problem. interrupted: the load was stopped before it was complete.",
        ),
        text_column("problem", "Why it failed, in few words that group (HTTP 503, timeout)."),
        text_column("detail", "What the server or the network said, shortened, secrets removed."),
        time_column("due_ns", "When it was to be sent: its arrival, or when its client was free."),
        time_column(
            "sent_ns", "Its first byte was written: the clock of every latency starts here."
        ),
        time_column("first_token_ns", "Its first chunk with content."),
        time_column("last_token_ns", "Its last chunk with content."),
        time_column("end_ns", "Its last chunk of any kind; of a failed one, when it failed."),
        Column(
            "queued_ns", pl.Int64(), "It waited in the client, from due to sent.", Unit.DURATION
        ),
        Column("ttft_ns", pl.Int64(), "Sent to first content.", Unit.DURATION),
        Column("e2e_ns", pl.Int64(), "Sent to the last chunk; of complete ones.", Unit.DURATION),
        Column(
            "tpot_ns",
            pl.Float64(),
            "(e2e_ns − ttft_ns) ÷ (output_tokens − 1), where there are more than one.",
            Unit.DURATION,
        ),
        Column(
            "prompt_tokens", pl.Int64(), "Tokens of its prompt, as the server counts.", Unit.COUNT
        ),
        Column("cached_tokens", pl.Int64(), "Of them, found in the prefix cache.", Unit.COUNT),
        Column("output_tokens", pl.Int64(), "Tokens it got, as the server counts.", Unit.COUNT),
        Column("asked_prompt_tokens", pl.Int64(), "Length that the load drew.", Unit.COUNT),
        Column("asked_output_tokens", pl.Int64(), "Limit that the load drew.", Unit.COUNT),
        Column("num_verifies", pl.Int64(), "Verify steps it took, if the server says.", Unit.COUNT),
        text_column("finish_reason", "Why the server ended it (stop, length)."),
        Column("http_status", pl.Int64(), "Status of the answer."),
        Column("chunk_ns", pl.List(pl.Int64()), "Times of its chunks with content.", Unit.TIME),
        Column(
            "chunk_tokens",
            pl.List(pl.Int64()),
            "Tokens of each of them; null where the server does not say.",
            Unit.COUNT,
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a load, or a word about one.

    Attributes:
        name: Its key; a quantity carries its unit.
        unit: What the number means.
        meaning: One sentence, with the formula.
        is_better: Which way it improves; None where neither is better.
    """

    name: str
    unit: Unit
    meaning: str
    is_better: str | None = None


_STATISTICS = (
    ("n", "count"),
    ("mean", "mean"),
    ("p50", "median"),
    ("p90", "90th percentile"),
    ("p99", "99th percentile"),
    ("max", "longest"),
)
_SPREADS = (
    ("ttft", "time from sent to first content, per request"),
    ("itl", "gap between chunks with content of a request; per chunk, not per token"),
    ("tpot", "(e2e − TTFT) ÷ (output tokens − 1), per request with more than one"),
    ("e2e", "time from sent to last chunk, per complete request"),
    ("queued", "time from due to sent: for a free client, a connection, the client itself"),
)


def _spread(name: str, meaning: str) -> tuple[Metric, ...]:
    return tuple(
        Metric(f"{name}_n", Unit.COUNT, f"How many there are of: {meaning}.")
        if key == "n"
        else Metric(f"{name}_{key}_ns", Unit.DURATION, f"{word.capitalize()}: {meaning}.", "lower")
        for key, word in _STATISTICS
    )


METRICS = {
    metric.name: metric
    for metric in (
        Metric("phase", Unit.NONE, "Part of the capture."),
        Metric("clock", Unit.NONE, "wall, or virtual: the server's own stamps on its own clock."),
        Metric("stopped", Unit.NONE, "Why the load ended early; null if it did not."),
        Metric("cache_flush", Unit.NONE, "How the prefix cache was flushed, or why it was not."),
        Metric("planned", Unit.COUNT, "Requests that the load was to send."),
        Metric("sent", Unit.COUNT, "Requests that it sent."),
        Metric("completed", Unit.COUNT, "Of them, complete."),
        Metric("failed", Unit.COUNT, "Of them, failed; they count in no latency.", "lower"),
        Metric("interrupted", Unit.COUNT, "Of them, cut short when the load was stopped."),
        Metric("failures", Unit.NONE, "Why, each reason with its count."),
        Metric("duration_ns", Unit.DURATION, "First due to last end, summed over bursts."),
        Metric("prompt_tokens", Unit.COUNT, "Of complete requests, as the server counts."),
        Metric("cached_tokens", Unit.COUNT, "Of them, found in the prefix cache."),
        Metric("output_tokens", Unit.COUNT, "Of complete requests, as the server counts."),
        Metric("requests_per_s", Unit.PER_S, "completed ÷ duration.", "higher"),
        Metric("output_tokens_per_s", Unit.PER_S, "output_tokens ÷ duration.", "higher"),
        Metric("concurrency", Unit.MEAN, "Sum of e2e of complete requests ÷ duration."),
        *(metric for spread in _SPREADS for metric in _spread(*spread)),
        Metric("acceptance_length", Unit.MEAN, "Tokens per verify, over this load.", "higher"),
        Metric("acceptance_from", Unit.NONE, "Counters it is from, or why there is none."),
        Metric("decode_batch", Unit.MEAN, "Complete requests of a burst, mean over bursts."),
        Metric("decode_window_ns", Unit.DURATION, "Time when every request of a burst decoded."),
        Metric("decode_tokens", Unit.COUNT, "Tokens that came in it."),
        Metric("decode_tokens_per_s", Unit.PER_S, "decode_tokens ÷ decode_window.", "higher"),
        Metric("decode_tokens_from", Unit.NONE, "How tokens were told to chunks, or why not."),
        Metric(
            "verify_cycles_per_s",
            Unit.PER_S,
            "Decode tokens/s ÷ (batch × acceptance length), in the window when all decode.",
            "higher",
        ),
        Metric("cycle_ns", Unit.DURATION, "Length of one cycle in that window.", "lower"),
        Metric("cycle_from", Unit.NONE, "What cycle_ns is made of, or why there is none."),
    )
}
