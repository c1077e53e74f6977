"""A compressor makes one entry of the key-value cache out of every few tokens.

One GEMM gives each token a value and a score per channel; a window of tokens is pooled by the
softmax of the scores, then normalised, rotated to its position and stored in the compressed cache.
At ratio 4 windows overlap: 8 tokens, the previous four through one half of the columns, the current
four through the other. At ratio 128 they do not. The indexer's is one of ratio 4, narrow and
multiplied by a Hadamard matrix. Shapes, order and the first group's mask are those of
DeepSeek-V4's compressor in SGLang 0.5.23; its quantised store and its online form for ratio 128
are not here.

Shapes: `n` tokens of a step.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from instrumented_runtime.compressor.compressor_kernels import pool_and_store, project
from instrumented_runtime.devices import Buffer, Kernel, Stream
from instrumented_runtime.marks.marked_device import MarkedDevice

# Assumed: what is computed does not depend on it.
ROPE_BASE = 160_000.0


@dataclass(frozen=True, slots=True)
class CompressorShape:
    """Which compressor.

    Attributes:
        hidden_dim: Columns of the hidden state.
        ratio: Tokens per entry; at 4 windows overlap.
        head_dim: Columns of an entry.
        rope_dim: How many of those, the last ones, are rotated to the position.
        is_indexer: Whether entries are multiplied by a Hadamard matrix; `head_dim` is then a power
            of two.
    """

    hidden_dim: int
    ratio: int
    head_dim: int
    rope_dim: int = 64
    is_indexer: bool = False

    @property
    def halves(self) -> int:
        """How many groups of `ratio` tokens a window spans."""
        return 2 if self.ratio == 4 else 1

    @property
    def columns(self) -> int:
        """Columns of the GEMM's result: values, then scores, of each half."""
        return 2 * self.halves * self.head_dim

    def max_entries(self, tokens: int, requests: int) -> int:
        """Return how many entries a step of so many tokens of so many requests can complete."""
        return min(tokens, tokens // self.ratio + requests)


@dataclass(frozen=True, slots=True)
class CompressorSizes:
    """What a compressor must have room for.

    Attributes:
        rows: Rows of requests, padding's row 0 included.
        max_tokens: Most tokens of a step.
        max_positions: Most tokens of a request.
        page_entries: Entries per page of the compressed cache.
        drafted_tokens: Most tokens of a step that the next one may replace.
        dtype: Of hidden state and weight.
    """

    rows: int
    max_tokens: int
    max_positions: int
    page_entries: int
    drafted_tokens: int = 0
    dtype: str = "bfloat16"


class CompressorKernels(NamedTuple):
    """The two kernels of a step; see `Compressor.kernels`."""

    project: Kernel
    pool: Kernel


class Parameters(NamedTuple):
    """What a compressor has learned, on the host.

    Attributes:
        weight: `[hidden_dim, columns] float32`; kept in the dtype of the hidden state.
        bias: `[ratio, halves · head_dim] float32`, added to the scores by position in the group.
        norm: `[head_dim] float32`.
    """

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    norm: NDArray[np.float32]

    @classmethod
    def drawn(cls, shape: CompressorShape, seed: int) -> "Parameters":
        """Return parameters that keep a hidden state of unit variance so."""
        draw = np.random.default_rng(seed)
        weight = draw.standard_normal((shape.hidden_dim, shape.columns), np.float32)
        bias = draw.standard_normal((shape.ratio, shape.columns // 2), np.float32)
        norm = 1 + draw.standard_normal(shape.head_dim, np.float32) / 8
        weight /= np.float32(shape.hidden_dim**0.5)
        return cls(weight, bias, norm.astype(np.float32))


class Compressor:
    """One compressor of one layer: its parameters, and the last tokens of each request.

    Its steps must be ordered: each reads what the one before kept. Two compressors share nothing,
    so they can run at once. A step can be captured: no shape depends on data, and nothing comes to
    the host. A new request in a row needs no reset, since it begins at position 0.

    Attributes:
        shape: Which.
        sizes: What it has room for.
        cache: Where entries go.
    """

    def __init__(
        self,
        device: MarkedDevice,
        shape: CompressorShape,
        sizes: CompressorSizes,
        *,
        table: Buffer,
        cache: Buffer,
        name: str = "compressor",
    ) -> None:
        """Allocate everything; the parameters are yet to be loaded.

        Args:
            device: Where.
            shape: Which.
            sizes: What it needs room for.
            table: `[rows, pages] int64`, device: pages of the compressed cache by request. Row 0
                and page 0 are padding's.
            cache: `[pages · page_entries, head_dim]`, device, of any float: written only.
            name: Prefix of the names of its buffers.
        """
        self._device, self.shape, self.sizes = device, shape, sizes
        self._table, self.cache = table, cache
        width, slots = shape.columns, shape.ratio * shape.halves + sizes.drafted_tokens

        def allocate(of: str, lengths: tuple[int, ...], dtype: str = "float32") -> Buffer:
            return device.allocate(lengths, dtype, f"{name}_{of}")

        self._weight = allocate("weight", (shape.hidden_dim, width), sizes.dtype)
        self._bias = allocate("bias", (shape.ratio, width // 2))
        self._norm = allocate("norm", (shape.head_dim,))
        entries = sizes.max_positions // shape.ratio
        self._angles = allocate("angles", (entries, shape.rope_dim // 2, 2))
        self._hadamard = allocate("hadamard", (shape.head_dim, shape.head_dim))
        self._projected = allocate("projected", (sizes.max_tokens, width), sizes.dtype)
        self._kept = allocate("kept", (sizes.rows, slots, width))

    def load(self, parameters: Parameters, stream: Stream) -> None:
        """Queue the copies of all parameters; needs a device with tensors.

        Synchronise the device first: a real one clears new memory on the null stream.
        """
        shape, sizes = self.shape, self.sizes
        entries = sizes.max_positions // shape.ratio
        loaded = (
            (self._weight, parameters.weight, sizes.dtype),
            (self._bias, parameters.bias, "float32"),
            (self._norm, parameters.norm, "float32"),
            (self._angles, _angles(entries, shape), "float32"),
            (self._hadamard, _hadamard(shape), "float32"),
        )
        for buffer, values, dtype in loaded:
            source = self._device.pinned(values.shape, dtype, f"{buffer.name}_host")
            tensor = source.on_host()
            tensor.copy_(tensor.new_tensor(values))
            self._device.copy_async(buffer, source, stream)

    def kernels(
        self, max_entries: int, *, project_ns: int, pool_ns: int, sensitivity: float = 0.0
    ) -> CompressorKernels:
        """Return the kernels of steps that complete no more than so many entries.

        Args:
            max_entries: As `CompressorShape.max_entries` says, or more; memory and time go with it.
            project_ns: Cost of the GEMM on the virtual device.
            pool_ns: Cost of all the rest there.
            sensitivity: As `Kernel.sensitivity`, of both.
        """
        kind = "indexer_compressor" if self.shape.is_indexer else f"compressor_{self.shape.ratio}"
        pool = pool_and_store(
            self.sizes.page_entries, max_entries, is_indexer=self.shape.is_indexer
        )
        return CompressorKernels(
            Kernel(f"{kind}_gemm", project_ns, project, sensitivity),
            Kernel(f"{kind}_pool_store", pool_ns, pool, sensitivity),
        )

    def launch(
        self,
        kernels: CompressorKernels,
        stream: Stream,
        *,
        hidden: Buffer,
        rows: Buffer,
        positions: Buffer,
    ) -> None:
        """Queue a step.

        Args:
            kernels: As `kernels` returns them.
            stream: Where.
            hidden: `[n, hidden_dim]`, device.
            rows: `[n]` integers, or `[b, k]` for n = b · k, device: the request of each token, 0
                for padding. The tokens of a request are next to each other.
            positions: Like `rows`: places in the request, rising by one from token to token.
        """
        launch, projected = self._device.launch, self._projected
        launch(kernels.project, stream, [hidden, self._weight], [projected])
        learned = [self._bias, self._norm, self._angles, self._hadamard]
        reads = [rows, positions, self._table, projected, *learned]
        launch(kernels.pool, stream, reads, [self._kept, self.cache])


def _angles(entries: int, shape: CompressorShape) -> NDArray[np.float64]:
    """Return `[entries, rope_dim / 2, 2]`: cosine and sine at each group's first position."""
    pair = np.arange(shape.rope_dim // 2)
    angles = np.outer(np.arange(entries) * shape.ratio, ROPE_BASE ** (-2 * pair / shape.rope_dim))
    return np.stack((np.cos(angles), np.sin(angles)), -1)


def _hadamard(shape: CompressorShape) -> NDArray[np.float64]:
    """Return Sylvester's matrix of ±head_dim^−½, which is its own inverse."""
    number = np.arange(shape.head_dim)
    shared_bits = number[:, None] & number
    is_odd = np.bitwise_count(shared_bits) % 2 == 1
    size = shape.head_dim**-0.5
    matrix: NDArray[np.float64] = np.where(is_odd, -size, size)
    return matrix
