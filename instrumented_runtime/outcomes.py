"""What a step said, once the host may know it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from instrumented_runtime.config import EngineConfig
from instrumented_runtime.model import DraftMisses, HostModel, Int64s, Weights, is_missed
from instrumented_runtime.request import Request
from instrumented_runtime.scheduling.scheduler import Batch

if TYPE_CHECKING:
    from torch import Tensor


class Outcomes:
    """Takes tokens from a step's result, or from the host's own decoder if nothing was computed."""

    def __init__(self, config: EngineConfig) -> None:
        """Begin with no requests."""
        rows = config.max_running + 1
        self._config = config
        self._host = None if config.has_tensors else HostModel(Weights.of(config.seed), rows)
        self._seeds, self._thresholds = np.zeros(rows, np.int64), np.zeros(rows, np.int64)

    def misses(self, request: Request) -> DraftMisses:
        """Return where the draft of a request is wrong."""
        config = self._config
        misses = DraftMisses.of(
            request.request_id, config.draft_miss_share, config.draft_miss_spread, config.seed
        )
        self._seeds[request.row], self._thresholds[request.row] = misses.seed, misses.threshold
        return misses

    def of_decode(
        self, requests: Sequence[Request], places: Sequence[int], copied: "Tensor | None"
    ) -> list[list[int]]:
        """Return the tokens that a decode step yielded for each request.

        Args:
            requests: Those that still want them.
            places: Where each stood in the batch.
            copied: `[max_running, k + 2] int64`, host: counts, then tokens.
        """
        if self._host is None:
            assert copied is not None
            width = self._config.speculative_tokens + 2
            # On the host, and complete: whoever has it has waited for the copy.
            rows = copied.flatten()[: (max(places) + 1) * width].view(-1, width).tolist()
            return [rows[place][1 : 1 + rows[place][0]] for place in places]
        at = np.array([request.row for request in requests])
        counts = self._accepted(requests, at)
        said = self._host.next_tokens(at, counts)
        return [tokens[:count].tolist() for tokens, count in zip(said, counts, strict=True)]

    def of_prefill(self, batch: Batch, copied: "Tensor | None") -> list[tuple[Request, list[int]]]:
        """Return the one token that a prefill yielded for each request that gets one.

        Args:
            batch: Prompts computed to their ends, then requests that decoded beside them.
            copied: `[2 · max_running] int64`, host, or more.
        """
        most = self._config.max_running
        ended = [
            (place, chunk.request) for place, chunk in enumerate(batch.chunks) if chunk.is_last
        ]
        beside = [(most + place, request) for place, request in enumerate(batch.decode)]
        wanted = [(place, one) for place, one in (*ended, *beside) if not one.is_finished]
        if self._host is None:
            assert copied is not None
            tokens = copied.flatten()[: 2 * most].tolist()
            return [(request, [tokens[place]]) for place, request in wanted]
        for _, request in ended:
            if not request.is_finished:
                self._host.start(request.row, request.prompt)
        at = np.array([request.row for _, request in wanted], np.int64)
        said = self._host.next_tokens(at, np.ones(len(at), np.int64))
        return [
            (request, tokens.tolist()) for (_, request), tokens in zip(wanted, said, strict=True)
        ]

    def _accepted(self, requests: Sequence[Request], at: Int64s) -> Int64s:
        """Return how many tokens a step yields: drafted ones up to the first miss, and one."""
        drafted = np.arange(1, self._config.speculative_tokens + 1)
        known = np.array([len(one.prompt) + len(one.output) - 1 for one in requests])
        missed = is_missed(
            self._seeds[at, None], self._thresholds[at, None], known[:, None] + drafted
        )
        # A miss after the last, so that there is always a first.
        first: Int64s = np.pad(missed, ((0, 0), (0, 1)), constant_values=True).argmax(1)
        return first + 1
