"""The requests of a load as a declared table."""

from collections.abc import Iterable

import polars as pl

from tracekit.capture.load.sending import Sent
from tracekit.tables.client import REQUESTS

_TAKEN = (
    "status",
    "problem",
    "detail",
    "due_ns",
    "sent_ns",
    "end_ns",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "num_verifies",
    "finish_reason",
    "http_status",
    "chunk_ns",
    "chunk_tokens",
)


def requests_frame(phase: str, requests: Iterable[Sent]) -> pl.DataFrame:
    """Return the requests table of a phase, with the latencies that follow from its times.

    In the order of the plan, whichever was sent first.
    """
    rows = [
        {name: getattr(sent, name) for name in _TAKEN}
        | {
            "phase": phase,
            "rid": sent.planned.rid,
            "burst": sent.planned.burst,
            "asked_prompt_tokens": sent.planned.prompt_tokens,
            "asked_output_tokens": sent.planned.output_tokens,
        }
        for sent in sorted(requests, key=lambda sent: sent.planned.rid)
    ]
    schema = {name: dtype for name, dtype in REQUESTS.schema.items() if rows and name in rows[0]}
    return (
        REQUESTS.conform(with_latencies(pl.DataFrame(rows, schema=schema)))
        if rows
        else (REQUESTS.empty())
    )


def with_latencies(requests: pl.DataFrame) -> pl.DataFrame:
    """Add what follows from `due_ns`, `sent_ns`, `end_ns`, `chunk_ns` and `output_tokens`.

    The definitions are those of SGLang's serving benchmark: TTFT to the first chunk with content,
    end-to-end to the last chunk of any kind, TPOT over the tokens after the first.
    """
    is_ok = pl.col("status") == "ok"
    return (
        requests.with_columns(
            first_token_ns=pl.col("chunk_ns").list.first(),
            last_token_ns=pl.col("chunk_ns").list.last(),
            queued_ns=pl.col("sent_ns") - pl.col("due_ns"),
            e2e_ns=pl.when(is_ok).then(pl.col("end_ns") - pl.col("sent_ns")),
        )
        .with_columns(ttft_ns=pl.col("first_token_ns") - pl.col("sent_ns"))
        .with_columns(
            tpot_ns=pl.when(pl.col("output_tokens") > 1).then(
                (pl.col("e2e_ns") - pl.col("ttft_ns")) / (pl.col("output_tokens") - 1)
            )
        )
    )
