"""What a prefill's plan looks like in memory: how large its buffers are, and what is in them."""

from dataclasses import dataclass, fields
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from instrumented_runtime.options import require

Int32s = npt.NDArray[np.int32]

MOST = 2**31 - 1
# Of heads times `head_tile`: their ends are packed into the upper half of 32 bits, with a sign.
_MOST_HEADS = 2**15 - 1


class BufferSpec(NamedTuple):
    """One buffer of a plan.

    Attributes:
        name: `work_indptr` and so on, as AITER calls it.
        shape: At its largest, which is the only size it has.
        dtype: Name of the dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class PlanShape:
    """What the buffers of a plan are sized for, and how it is cut.

    Attributes:
        max_batch: Sequences of one prefill.
        kv_heads: Heads of keys. With more heads of queries to each, `head_tile` is their number.
        compute_units: Groups that work side by side.
        max_query_tokens: Query rows of one sequence.
        query_tile: Query rows of a tile (`qlen_granularity`).
        kv_tile: Tokens of a unit (`kvlen_granularity`); a multiple of `block_size`.
        block_size: Tokens of a page.
        head_tile: Numbers a head takes in the packed heads of an item (`qhead_granularity`).
        is_causal: Whether a row reaches only what is not after it.
    """

    max_batch: int
    kv_heads: int
    compute_units: int
    max_query_tokens: int
    query_tile: int = 256
    kv_tile: int = 128
    block_size: int = 1
    head_tile: int = 1
    is_causal: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be planned.

        Raises:
            ValueError: Names the field and what is allowed.
        """
        for part in fields(self):
            value = getattr(self, part.name)
            if part.name == "is_causal":
                require(isinstance(value, bool), part.name, value, "true or false")
            else:
                is_number = type(value) is int and 1 <= value <= MOST
                require(is_number, part.name, value, "a whole number from 1 to 2^31 − 1")
        is_multiple = self.kv_tile % self.block_size == 0
        require(is_multiple, "kv_tile", self.kv_tile, f"a multiple of {self.block_size}, a page")
        most = _MOST_HEADS // self.head_tile
        require(self.kv_heads <= most, "kv_heads", self.kv_heads, f"at most {most}")
        rows = self.max_partials * self.query_tile
        fewer = f"fewer: scratch rows are counted to {MOST}, these need {rows}"
        require(rows <= MOST, "max_query_tokens", self.max_query_tokens, fewer)

    @property
    def clusters(self) -> int:
        """Clusters of groups; each makes the same plan for heads of its own."""
        return gcd(self.kv_heads, self.compute_units)

    @property
    def groups(self) -> int:
        """Groups of one cluster."""
        return self.compute_units // self.clusters

    @property
    def heads(self) -> int:
        """Heads of one cluster."""
        return self.kv_heads // self.clusters

    @property
    def max_partials(self) -> int:
        """Parts of shared tiles that fit `reduce_partial_map`; the scratch needs no more."""
        most = min(self.max_batch + self.groups - 1, 2 * (self.groups - 1))
        return most * self._max_tiles

    @property
    def buffers(self) -> tuple[BufferSpec, ...]:
        """All six buffers. The first is the device's own, which no plan writes."""
        most, tiles = self.max_batch, self._max_tiles
        items = (most + self.groups - 1) * tiles * self.kv_heads
        return (
            BufferSpec("work_metadata", (2,), "uint64"),
            BufferSpec("work_indptr", (self.compute_units + 1,), "int32"),
            BufferSpec("work_info", (items, 8), "int32"),
            BufferSpec("reduce_indptr", (most * tiles + 1,), "int32"),
            BufferSpec("reduce_final_map", (most * tiles, 2), "int32"),
            BufferSpec("reduce_partial_map", (self.max_partials,), "int32"),
        )

    @property
    def _max_tiles(self) -> int:
        return -(-self.max_query_tokens // self.query_tile)


class PlanArrays(NamedTuple):
    """The five buffers that a plan writes, int32, host; shapes as `PlanShape.buffers` says.

    Attributes:
        work_indptr: `[compute_units + 1]`: where each group's items begin.
        work_info: `[items, 8]`: sequence, first scratch row or −1 for the output, query rows from
            and to, pages from and to, tokens of the sequence beyond those pages (0 if they are the
            tile's last), heads from (low half) and to (high half). Rows and pages are counted over
            all sequences.
        reduce_indptr: `[tiles + 1]`: where each shared tile's parts begin; then their number.
        reduce_final_map: `[tiles, 2]`: query rows of each shared tile, from and to, in ascending
            order.
        reduce_partial_map: `[parts]`: first scratch row of each part, ascending within its tile.
    """

    work_indptr: Int32s
    work_info: Int32s
    reduce_indptr: Int32s
    reduce_final_map: Int32s
    reduce_partial_map: Int32s
