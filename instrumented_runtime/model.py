"""A tiny decoder whose logits are exact, so that neither batch nor device can change a token.

All weights and activations are small integers in float32 and every sum stays below 2^24, where
float32 is exact in any order of summation; no two logits of a token are equal. It does what a
decoder does to memory (embed, write keys and values through a page table, read a window of them,
project), and nothing to language.
"""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]

VOCABULARY = 512
WIDTH = 16
WINDOW = 8
LAYERS = 2
# Activations are remainders of it.
MODULUS = 61

_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Weights:
    """The decoder's parameters, all integers.

    Attributes:
        embedding: `[VOCABULARY, WIDTH]`, from 0 to `MODULUS` − 1.
        values: `[LAYERS, WIDTH, WIDTH]`, from −4 to 4.
        attention: `[LAYERS, WINDOW]`, from 1 to 8: how much the token so many places back counts.
        head: `[WIDTH, VOCABULARY]`, from −8 to 8, each times `VOCABULARY`.
        tie: `[VOCABULARY]`: added to the logits, so that no two are equal.
    """

    embedding: Float32s
    values: Float32s
    attention: Float32s
    head: Float32s
    tie: Float32s

    @classmethod
    def of(cls, seed: int) -> "Weights":
        """Return the parameters of a seed."""
        draw = np.random.default_rng(seed).integers

        def integers(low: int, high: int, *shape: int) -> Float32s:
            return draw(low, high, shape, endpoint=True).astype(np.float32)

        return cls(
            embedding=integers(0, MODULUS - 1, VOCABULARY, WIDTH),
            values=integers(-4, 4, LAYERS, WIDTH, WIDTH),
            attention=integers(1, 8, LAYERS, WINDOW),
            # At most 16 · 30 · 8 · 512 + 511, which is below 2^21.
            head=integers(-8, 8, WIDTH, VOCABULARY) * VOCABULARY,
            tie=np.arange(VOCABULARY, dtype=np.float32),
        )


@dataclass(frozen=True, slots=True)
class DraftMisses:
    """Where the draft of one request is wrong: at positions that a hash picks.

    Attributes:
        seed: Of the request, below 2^31.
        threshold: Of 65,536 positions so many are missed.
    """

    seed: int
    threshold: int

    @classmethod
    def of(cls, request_id: int, share: float, spread: float, seed: int) -> "DraftMisses":
        """Draw those of a request.

        Args:
            request_id: Which request.
            share: Of positions that are missed, over all requests.
            spread: Standard deviation of that share between requests.
            seed: Of the engine.
        """
        draw = random.Random(f"{seed}:{request_id}")
        own = min(max(draw.gauss(share, spread), 0.0), 1.0)
        return cls(draw.getrandbits(31), round(own * 65_536))


def is_missed(seeds: Any, thresholds: Any, positions: Any) -> Any:  # noqa: ANN401  both kinds
    """Hash request and position; integers of 64 bits only, so that every device agrees.

    Takes arrays of numpy or tensors of torch, int64, that broadcast against each other; returns
    booleans of their shape.
    """
    mixed = (seeds + positions * 0x1E3779B1) & _MASK
    mixed = mixed ^ (mixed >> 15)
    mixed = (mixed * 0x2C1B3C6D) & _MASK
    mixed = mixed ^ (mixed >> 12)
    mixed = (mixed * 0x297A2D39) & _MASK
    mixed = mixed ^ (mixed >> 15)
    return (mixed & 0xFFFF) < thresholds


class HostModel:
    """The same decoder on the host, without pages: what a request says, one token after another.

    For runs in which the device computes nothing. Rows are those of the engine's request tables.
    """

    def __init__(self, weights: Weights, rows: int) -> None:
        """Make room for `rows` requests."""
        self._weights = weights
        self._length = np.zeros(rows, np.int64)
        self._last = np.zeros(rows, np.int64)
        self._values = np.zeros((rows, LAYERS, WINDOW, WIDTH), np.float32)

    def start(self, row: int, prompt: tuple[int, ...]) -> None:
        """Begin with a prompt, of which only what a window can see is computed."""
        seen = prompt[-LAYERS * WINDOW :]
        self._length[row] = len(prompt) - len(seen)
        rows = np.array([row])
        for token in seen:
            self._last[row] = token
            self._step(rows)

    def next_tokens(self, rows: Int64s, counts: Int64s) -> Int64s:
        """Say the next tokens of requests.

        Args:
            rows: `[n]`, all different.
            counts: `[n]`, how many tokens of each.

        Returns:
            `[n, max(counts)]`; what is beyond a request's count is 0.
        """
        said = np.zeros((len(rows), int(counts.max(initial=0))), np.int64)
        for place in range(said.shape[1]):
            going = counts > place
            said[going, place] = self._last[rows[going]]
            self._step(rows[going])
        return said

    def _step(self, rows: Int64s) -> None:
        """Take the last token of each row into its window, and find the next."""
        weights = self._weights
        positions = self._length[rows]
        hidden = weights.embedding[self._last[rows]]
        back = np.arange(WINDOW)
        places = (positions[:, None] - back) % WINDOW
        is_there = (positions[:, None] >= back).astype(np.float32)
        for layer in range(LAYERS):
            values = _remainder(hidden @ weights.values[layer])
            self._values[rows, layer, positions % WINDOW] = values
            window = self._values[rows[:, None], layer, places]
            share = weights.attention[layer] * is_there
            hidden = _remainder(3 * hidden + (share[:, None] @ window)[:, 0])
        logits = (hidden - MODULUS // 2) @ weights.head + weights.tie
        self._last[rows] = logits.argmax(1)
        self._length[rows] = positions + 1


def _remainder(values: Float32s) -> Float32s:
    # Exact for these integers, and five times as fast as numpy's own for floats.
    whole: Float32s = np.floor(values / MODULUS)
    return values - MODULUS * whole
