"""A compressor's entries by the formulas, in float64 and plain loops, and runs of one by steps."""

import math
from dataclasses import dataclass

import numpy as np

from instrumented_runtime.compressor.compressor import (
    Compressor,
    CompressorShape,
    CompressorSizes,
    Parameters,
)
from instrumented_runtime.devices import Kernel
from instrumented_runtime.marks import Marks
from instrumented_runtime.marks.marked_device import MarkedDevice

PAGE_ENTRIES = 4
UNTOUCHED = 7.0
FOUR = CompressorShape(hidden_dim=12, ratio=4, head_dim=8, rope_dim=4)
INDEXER = CompressorShape(hidden_dim=12, ratio=4, head_dim=8, rope_dim=4, is_indexer=True)
LONG = CompressorShape(hidden_dim=12, ratio=128, head_dim=8, rope_dim=4)
SHAPES = {"ratio 4": FOUR, "indexer": INDEXER, "ratio 128": LONG}


@dataclass(frozen=True)
class Piece:
    """Tokens of one request in a step; row 0 is padding."""

    row: int
    first: int
    count: int


def reference(hidden, parameters, shape):
    """`[entries, head_dim]` of a whole request, `hidden [tokens, hidden_dim]`."""
    weight, bias, norm = (np.asarray(part, np.float64) for part in parameters)
    d, r = shape.head_dim, shape.ratio
    projected = np.asarray(hidden, np.float64) @ weight
    columns = projected.shape[1] // 2
    values, scores = projected[:, :columns], projected[:, columns:]
    entries = []
    for group in range(len(hidden) // r):
        entry = [
            _pooled(values, scores, bias, _window(group, r, columns // d, d, channel))
            for channel in range(d)
        ]
        size = math.sqrt(sum(value**2 for value in entry) / d + 1e-6)
        entry = [value / size * norm[channel] for channel, value in enumerate(entry)]
        _rotate(entry, group * r, shape.rope_dim)
        entries.append(_hadamard(d) @ entry if shape.is_indexer else entry)
    return np.array(entries).reshape(-1, d)


def _window(group, r, halves, d, channel):
    """Token, place in its group and column of each token of a window."""
    previous = [((group - 1) * r + i, i, channel) for i in range(r)] if halves == 2 else []
    current = [(group * r + i, i, (halves - 1) * d + channel) for i in range(r)]
    return [one for one in previous + current if one[0] >= 0]


def _pooled(values, scores, bias, window):
    weights = [math.exp(scores[token, column] + bias[i, column]) for token, i, column in window]
    pairs = zip(weights, window, strict=True)
    return sum(w * values[token, column] for w, (token, _, column) in pairs) / sum(weights)


def _rotate(entry, position, rope_dim):
    first = len(entry) - rope_dim
    for pair in range(rope_dim // 2):
        turn = complex(0, position * 160_000 ** (-2 * pair / rope_dim))
        at = first + 2 * pair
        turned = complex(entry[at], entry[at + 1]) * np.exp(turn)
        entry[at], entry[at + 1] = turned.real, turned.imag


def _hadamard(d):
    matrix = np.ones((1, 1))
    while len(matrix) < d:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / math.sqrt(d)


def hidden_states(tokens, shape, seed=1):
    return np.random.default_rng(seed).standard_normal((tokens, shape.hidden_dim), np.float32)


class Run:
    """A compressor and its cache on a device.

    Pages are dealt to rows so that a request's are not in order.
    """

    def __init__(
        self, device, shape, *, rows, max_positions, max_tokens, drafted=0, dtype="float32"
    ):
        self.marked = MarkedDevice(device, Marks())
        self.device, self.shape = device, shape
        self.stream = self.marked.stream("main")
        entries = max_positions // shape.ratio
        pages = -(-entries // PAGE_ENTRIES)
        self.pages = np.zeros((rows, pages), np.int64)
        self.pages[1:] = (
            np.random.default_rng(3).permutation((rows - 1) * pages).reshape(rows - 1, pages)
        )
        self.pages[1:] += 1
        self.sizes = CompressorSizes(rows, max_tokens, max_positions, PAGE_ENTRIES, drafted, dtype)
        self.parameters = Parameters.drawn(shape, seed=2)
        slots = ((rows - 1) * pages + 1) * PAGE_ENTRIES
        cache = self.marked.allocate((slots, shape.head_dim), "float32", "cache")
        self.compressor = Compressor(
            self.marked, shape, self.sizes, table=self.upload(self.pages), cache=cache
        )
        self.marked.synchronize()
        fill = Kernel("fill", 1, lambda target: target.fill_(UNTOUCHED))
        self.marked.launch(fill, self.stream, [], [cache])
        self.compressor.load(self.parameters, self.stream)

    def upload(self, values, dtype=None):
        values = np.ascontiguousarray(values)
        source = self.marked.pinned(values.shape, dtype or values.dtype.name, "source")
        source.on_host().copy_(source.on_host().new_tensor(values))
        # Its stream owns it, or it could be used again while a step still reads it.
        target = self.marked.allocate(
            values.shape, dtype or values.dtype.name, "target", stream=self.stream
        )
        self.marked.copy_async(target, source, self.stream)
        return target

    def step(self, pieces, hidden):
        """One step; `hidden` is `[tokens, hidden_dim]` by row."""
        rows = np.concatenate([np.full(one.count, one.row) for one in pieces])
        positions = np.concatenate([one.first + np.arange(one.count) for one in pieces])
        states = np.concatenate(
            [hidden[one.row][one.first : one.first + one.count] for one in pieces]
        )
        self.compressor.launch(
            self.kernels(len(rows), sum(one.row > 0 for one in pieces)),
            self.stream,
            hidden=self.upload(states, self.sizes.dtype),
            rows=self.upload(rows),
            positions=self.upload(positions),
        )

    def kernels(self, tokens, requests):
        return self.compressor.kernels(
            self.shape.max_entries(tokens, requests), project_ns=10, pool_ns=10
        )

    def cache(self):
        """`[slots, head_dim]` once the device is idle."""
        cache = self.compressor.cache
        host = self.marked.pinned(
            (cache.size_bytes // 4 // self.shape.head_dim, self.shape.head_dim), "float32", "read"
        )
        self.marked.copy_async(host, cache, self.stream)
        self.marked.synchronize()
        return host.on_host().numpy().copy()

    def entries(self, row, tokens):
        """What the cache holds of a request of so many tokens."""
        number = np.arange(tokens // self.shape.ratio)
        slots = self.pages[row, number // PAGE_ENTRIES] * PAGE_ENTRIES + number % PAGE_ENTRIES
        return self.cache()[slots]


def assert_close(found, expected, tolerance):
    assert found.shape == expected.shape
    assert len(expected)
    assert np.all(np.abs(found - expected) <= tolerance * np.maximum(1, np.abs(expected)))
