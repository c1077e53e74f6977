"""What a step takes from the host to the device, in memory of its own until the step is done."""

from collections.abc import Sequence

from instrumented_runtime.config import EngineConfig
from instrumented_runtime.devices import Stream
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.model import DraftMisses
from instrumented_runtime.request import Request
from instrumented_runtime.scheduling.future_map import DecodeInputs
from instrumented_runtime.scheduling.scheduler import Batch
from instrumented_runtime.transfers import HostCopy, Upload


class StepInputs:
    """The staging memory of one step.

    A step that is prepared while another runs must not touch what that one still reads. So there is
    one of these for each step that can be under way; the host writes to it only when the step that
    had it before is done.

    Attributes:
        decode: Rows and lengths of requests that decode.
        tokens: Tokens of a prefill, their rows and their positions, each
            `[chunk_tokens + max_running] int64`, device: those of prompts first.
        last_index: `[2 · max_running]`: which of them is the last of each sequence.
        sequences: Rows and new lengths of the sequences, each `[2 · max_running]`.
        admitted: `[max_running]` rows that are new, and their `[max_running, columns]` of the
            request table.
        result: What the step yields, for the host.
    """

    def __init__(self, device: MarkedDevice, config: EngineConfig, number: int) -> None:
        """Make room for the largest step; `number` tells it from the others."""
        self._config = config
        most, tokens = config.max_running, config.chunk_tokens + config.max_running

        def upload(name: str, *shape: int) -> Upload:
            has_tensors = config.has_tensors
            return Upload(device, shape, f"{name}_{number}", has_tensors=has_tensors)

        self._rows, self._seq_lens = upload("step_rows", most), upload("step_seq_lens", most)
        self.decode = DecodeInputs(self._rows.target, self._seq_lens.target)
        self._tokens = upload("prefill_tokens", tokens)
        self._token_rows = upload("prefill_rows", tokens)
        self._positions = upload("prefill_positions", tokens)
        # One place per request that may be prefilled, then one per request that may decode.
        self._last_index = upload("prefill_last_index", 2 * most)
        self._sequence_rows = upload("prefill_sequence_rows", 2 * most)
        self._ends = upload("prefill_ends", 2 * most)
        self._table_rows = upload("admitted_rows", most)
        columns = 2 + config.pages_per_request
        self._table = upload("admitted", most, columns)
        width = max(config.speculative_tokens + 2, 2)
        has_tensors = config.has_tensors
        self.result = HostCopy(device, [most, width], f"result_{number}", has_tensors=has_tensors)

        self.tokens = (self._tokens.target, self._token_rows.target, self._positions.target)
        self.last_index = self._last_index.target
        self.sequences = (self._sequence_rows.target, self._ends.target)
        self.admitted = (self._table_rows.target, self._table.target)

    def upload_decode(self, requests: Sequence[Request], stream: Stream) -> None:
        """Queue the rows of requests that decode."""
        self.decode.batch_size = len(requests)
        self._rows.start([request.row for request in requests], stream)

    def upload_lengths(self, lengths: Sequence[int], stream: Stream) -> None:
        """Queue lengths that the host knows without being told."""
        self._seq_lens.start(lengths, stream)

    def upload_prefill(self, batch: Batch, misses: Sequence[DraftMisses], stream: Stream) -> None:
        """Queue a prefill: tokens, sequences, and table rows of those that are new.

        Args:
            batch: Its chunks, and the requests that decode one token beside them.
            misses: Of the draft, of each request that is admitted.
            stream: The scheduler's.
        """
        most, chunk_tokens = self._config.max_running, self._config.chunk_tokens
        tokens: list[int] = []
        rows: list[int] = []
        positions: list[int] = []
        last_index = [0] * (2 * most)
        sequence_rows, ends = [0] * (2 * most), [0] * (2 * most)
        for place, chunk in enumerate(batch.chunks):
            request = chunk.request
            tokens += request.prompt[chunk.start : chunk.end]
            rows += [request.row] * (chunk.end - chunk.start)
            positions += range(chunk.start, chunk.end)
            last_index[place] = len(tokens) - 1
            sequence_rows[place], ends[place] = request.row, chunk.end
        rows += [0] * (chunk_tokens - len(rows))
        for place, request in enumerate(batch.decode):
            rows.append(request.row)
            last_index[most + place] = chunk_tokens + place
            sequence_rows[most + place] = request.row
        for upload, values in (
            (self._tokens, tokens),
            (self._token_rows, rows),
            (self._positions, positions),
            (self._last_index, last_index),
            (self._sequence_rows, sequence_rows),
            (self._ends, ends),
        ):
            upload.start(values, stream)
        if batch.admitted:
            self._upload_admitted(batch.admitted, misses, stream)

    def _upload_admitted(
        self, requests: Sequence[Request], misses: Sequence[DraftMisses], stream: Stream
    ) -> None:
        self._table_rows.start([request.row for request in requests], stream)
        pages = self._config.pages_per_request
        table = [
            [miss.seed, miss.threshold, *request.pages, *([0] * (pages - len(request.pages)))]
            for request, miss in zip(requests, misses, strict=True)
        ]
        self._table.start(table, stream)
