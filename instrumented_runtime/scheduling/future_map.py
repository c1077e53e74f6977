"""What one step leaves for the next on the device, by row of the request tables.

A future index is the request's row; row 0 is padding. A step publishes the new length of each of
its requests between its verify and its draft-extend, and stashes their last tokens after it; the
next step takes both, before the host has seen either.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from instrumented_runtime import model_kernels
from instrumented_runtime.costs import SMALL_KERNEL_NS
from instrumented_runtime.devices import Buffer, Event, Kernel, Stream
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.scheduling.stream_policy import StreamPolicy
from instrumented_runtime.transfers import HostCopy

if TYPE_CHECKING:
    from torch import Tensor


class FutureMapError(RuntimeError):
    """A row would be read that the step before did not publish."""


@dataclass(slots=True)
class DecodeInputs:
    """What the scheduler prepares of a decode batch, until the forward has read it.

    Attributes:
        rows: `[max_running] int64`, device; 0 beyond the batch.
        seq_lens: `[max_running] int64`, device; gathered by `resolve_seq_lens_cpu`.
        batch_size: Requests in it; 0 for a rank that has none.
        seq_lens_cpu: `[max_running] int64`, host, where the engine asked for it.
    """

    rows: Buffer
    seq_lens: Buffer
    batch_size: int = 0
    seq_lens_cpu: "Tensor | None" = None


class FutureMap:
    """Relays lengths and last tokens from one step to the next.

    Checked (for debugging), what is published to a row can be taken once: the host knows whether
    anything was announced since it last waited, and what was taken from a row is replaced by −1,
    which fails when it is taken again. So a `publish` that forgets to announce fails on the host,
    and one that forgets to write fails on the device.

    Attributes:
        output_tokens: `[rows] int64`, device: the last token of each row.
        new_seq_lens: `[rows] int64`, device: its committed length.
        publish_ready: Recorded when a step has published; None before the first.
    """

    def __init__(
        self,
        device: MarkedDevice,
        rows: int,
        policy: StreamPolicy,
        *,
        is_speculative: bool,
        is_checked: bool = False,
        seq_lens_copy: HostCopy | None = None,
        tails_at: tuple[int, int] = (0, 0),
    ) -> None:
        """Make room.

        Args:
            device: Where the map lies.
            rows: Of the request tables, the padding row included.
            policy: How the scheduler waits.
            is_speculative: Without speculation the host knows all lengths, and nothing waits.
            is_checked: See the class.
            seq_lens_copy: `[max_running]`; where attention wants lengths on the host too, which
                then has to wait for them under any policy.
            tails_at: Where requests that decode beside a prefill begin among its tokens and among
                its sequences.
        """
        self._device, self._policy = device, policy
        self._is_speculative, self._is_checked = is_speculative, is_checked
        self._seq_lens_copy = seq_lens_copy
        self.output_tokens = device.allocate([rows], "int64", "output_tokens")
        self.new_seq_lens = device.allocate([rows], "int64", "new_seq_lens")
        self.publish_ready: Event | None = None
        self._is_fresh = False
        self._scatter = Kernel("publish", SMALL_KERNEL_NS, model_kernels.scatter)
        self._stash = Kernel("stash", SMALL_KERNEL_NS, model_kernels.scatter)
        gather = model_kernels.gather_lengths(is_checked)
        self._gather = Kernel("gather_seq_lens", SMALL_KERNEL_NS, gather)
        resolve = model_kernels.resolve_tails(*tails_at)
        self._resolve_tails = Kernel("resolve_mixed_tails", SMALL_KERNEL_NS, resolve)

    def reset(self, stream: Stream) -> None:
        """Checked, make a row that was never published fail when it is taken."""
        if self._is_checked:
            invalidate = Kernel("invalidate", SMALL_KERNEL_NS, model_kernels.invalidate)
            for buffer in (self.output_tokens, self.new_seq_lens):
                self._device.launch(invalidate, stream, [], [buffer])

    def publish(self, rows: Buffer, lengths: Buffer, batch_size: int, stream: Stream) -> None:
        """Write new lengths, and announce them to whoever resolves.

        Args:
            rows: `[b] int64`, device, padding included.
            lengths: `[b] int64`, device.
            batch_size: Of real requests; without any nothing is written or announced.
            stream: The forward's, which computed the lengths.
        """
        if not batch_size:
            return
        with self._device.range("FutureMap.publish"):
            self._write(rows, lengths, stream)
            if self._is_speculative:
                self._announce(stream)

    def stash(self, rows: Buffer, tokens: Buffer, batch_size: int, stream: Stream) -> None:
        """Write the last token of each row; shapes as `publish`."""
        if batch_size:
            self._device.launch(self._stash, stream, [rows, tokens], [self.output_tokens])

    def resolve_seq_lens_cpu(self, batch: DecodeInputs, stream: Stream) -> None:
        """Gather the lengths of a batch on the scheduler's stream, after they are published.

        Raises:
            FutureMapError: Checked, and nothing was announced since the last resolve.
        """
        if not batch.batch_size:
            return
        with self._device.range("FutureMap.resolve_seq_lens_cpu"):
            self._refuse_unannounced()
            self._wait(stream)
            self._is_fresh = False
            self._device.launch(
                self._gather,
                stream,
                [batch.rows, self.new_seq_lens],
                [batch.seq_lens, self.new_seq_lens],
            )
            if self._seq_lens_copy is not None:
                self._seq_lens_copy.start(batch.seq_lens, stream)
                copied = self._seq_lens_copy.wait()
                # The next step overwrites the copy while this one is still under way.
                batch.seq_lens_cpu = None if copied is None else copied.clone()

    def resolve_mixed_spec_tails(
        self, batch: DecodeInputs, tails: tuple[Buffer, Buffer, Buffer], stream: Stream
    ) -> None:
        """Fill in requests that decode one token beside a prefill, from where they really are.

        Neither checks nor clears what was announced: the tails are published anew.

        Args:
            batch: Their rows.
            tails: Tokens, positions and new lengths of the step, int64, device, its own.
            stream: The forward's.
        """
        if not batch.batch_size:
            return
        with self._device.range("FutureMap.resolve_mixed_spec_tails"):
            self._wait(stream)
            self._device.launch(
                self._resolve_tails,
                stream,
                [batch.rows, self.new_seq_lens, self.output_tokens],
                list(tails),
            )

    def _refuse_unannounced(self) -> None:
        if self._is_checked and not self._is_fresh:
            raise FutureMapError(
                "FutureMap: lengths are resolved that no step announced since the last resolve; "
                "publish has to record its event"
            )

    def _wait(self, stream: Stream) -> None:
        if self.publish_ready is not None:
            self._policy.wait(self._device, self.publish_ready, stream)

    def _write(self, rows: Buffer, lengths: Buffer, stream: Stream) -> None:
        self._device.launch(self._scatter, stream, [rows, lengths], [self.new_seq_lens])

    def _announce(self, stream: Stream) -> None:
        if self.publish_ready is None:
            self.publish_ready = self._device.event()
        self._device.record(self.publish_ready, stream)
        self._is_fresh = True
