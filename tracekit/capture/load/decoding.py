"""The time when every request of a burst decodes, and the tokens that came in it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import polars as pl


@dataclass(slots=True)
class Decoding:
    """All windows of a load in which every complete request of a burst decodes, added up.

    A burst's window begins when the last of its requests has its first chunk and ends with the
    first last chunk: before it some prefill, after it fewer decode.

    Attributes:
        length_ns: Of all windows.
        num_tokens: Tokens that came in them; None where there is no window, or no count.
        tokens_per_request: The same, each window's divided by the requests of its burst.
        chunks_per_request: Chunks that came in them, likewise.
        batch: Requests of a burst, mean over bursts with a window.
        tokens_from: How tokens were told to chunks.
        reason: Why there is no window; None if there is one.
    """

    length_ns: int = 0
    num_tokens: float | None = None
    tokens_per_request: float = 0.0
    chunks_per_request: float = 0.0
    batch: float | None = None
    tokens_from: str | None = None
    reason: str | None = "no burst has a time when all its requests decode"
    _batches: list[int] = field(default_factory=list)

    def add(self, length_ns: int, batch: int, tokens: float | None, chunks: int) -> None:
        """Add one burst's window."""
        self._batches.append(batch)
        self.batch = sum(self._batches) / len(self._batches)
        self.length_ns += length_ns
        self.chunks_per_request += chunks / batch
        self.reason = None
        if tokens is None or (self.num_tokens is None and len(self._batches) > 1):
            self.num_tokens = None
        else:
            self.num_tokens = (self.num_tokens or 0) + tokens
            self.tokens_per_request += tokens / batch


def decoding(complete: pl.DataFrame) -> Decoding:
    """Return the windows of complete requests (the requests table) when all of a burst decode.

    The instant a window begins is outside it, the instant it ends inside: a chunk is the work of
    the time before it.
    """
    found = Decoding()
    with_content = complete.filter(pl.col("chunk_ns").list.len() > 0)
    chunks, found.tokens_from = _chunks(with_content)
    for burst, start_ns, end_ns, batch in _windows(with_content):
        inside = chunks.filter(
            (pl.col("burst") == burst)
            & (pl.col("chunk_ns") > start_ns)
            & (pl.col("chunk_ns") <= end_ns)
        )
        is_known = inside["tokens"].null_count() == 0
        tokens = float(inside["tokens"].sum()) if is_known else None
        found.add(end_ns - start_ns, batch, tokens, inside.height)
    if found.reason is not None:
        found.tokens_from = None
    return found


def _windows(requests: pl.DataFrame) -> Iterator[tuple[int, int, int, int]]:
    spans = requests.group_by("burst", maintain_order=True).agg(
        pl.col("first_token_ns").max().alias("start_ns"),
        pl.col("last_token_ns").min().alias("end_ns"),
        pl.len().alias("batch"),
    )
    for burst, start_ns, end_ns, batch in spans.iter_rows():
        if end_ns > start_ns:
            yield burst, start_ns, end_ns, batch


def _chunks(requests: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return `burst`, `chunk_ns` and `tokens` of each chunk, and how the tokens were told."""
    chunks = requests.select(
        "burst", "chunk_ns", "chunk_tokens", "output_tokens", count=pl.col("chunk_ns").list.len()
    ).explode("chunk_ns", "chunk_tokens", empty_as_null=False, keep_nulls=False)
    if chunks["chunk_tokens"].null_count() == 0:
        told = chunks.with_columns(tokens=pl.col("chunk_tokens").cast(pl.Float64))
        return told, "the server counts each chunk"
    # The server counts the request only; then a chunk has the same share of it as any other.
    spread = chunks.with_columns(tokens=pl.col("output_tokens") / pl.col("count"))
    if spread["tokens"].null_count():
        return spread, "the server does not count tokens"
    return spread, "each request's tokens spread evenly over its chunks"
