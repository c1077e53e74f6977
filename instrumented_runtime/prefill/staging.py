"""Brings a prefill's plan from the host to the buffers that its kernels read, in three ways.

The buffers persist from step to step, so with the next step planned ahead the kernels of the last
one may still read them. Only `staged` is both right and quick:

- `direct`: blocking copies, on the null stream, which is ordered with no non-blocking stream. The
  fault: kernels that are queued run with the plan of the step after theirs.
- `synced`: the same, once the host has waited for the stream. Right, and the host is held until the
  prefill before is done.
- `staged`: copies in stream order from page-locked memory. There are two slots of it, and the host
  waits for a slot's last copies before it plans into it again.

The first two read the number of partial tiles back from the device, as the program does that has
this fault; `staged` has it from the plan, which is one wait for the device less in each step.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from instrumented_runtime.config import PLAN_WRITER_NAMES, PlanWriterName
from instrumented_runtime.devices import Buffer, Stream
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.options import require
from instrumented_runtime.prefill.planner import Lengths, PlanArrays, PlanShape, plan_into

# One is copied from while the other is planned into.
STAGING_SLOTS = 2


class PlanBuffers(NamedTuple):
    """The persistent buffers, device; shapes and dtypes as `PlanShape.buffers` says.

    In markers they are `plan_work_indptr` and so on. `work_metadata`, the sixth, is beside them in
    `PlanWriter.work_metadata`.
    """

    work_indptr: Buffer
    work_info: Buffer
    reduce_indptr: Buffer
    reduce_final_map: Buffer
    reduce_partial_map: Buffer


class PlanWriter(Protocol):
    """Brings plans to the device."""

    @property
    def buffers(self) -> PlanBuffers:
        """What kernels are driven by; the same for all steps."""

    @property
    def work_metadata(self) -> Buffer:
        """`[2]`, device; nothing writes it."""

    def write(self, query_lengths: Lengths, kv_lengths: Lengths, stream: Stream) -> int:
        """Plan, and bring the plan to the device for kernels launched on a stream from now on.

        Args:
            query_lengths: `[sequences]`, host; as `planner.plan_into`.
            kv_lengths: `[sequences]`, host; likewise.
            stream: The stream of the kernels that read the plan; not one that is being captured.

        Returns:
            The number of partial tiles; the scratch needs `query_tile` rows for each.

        Raises:
            ValueError: A length is not allowed; nothing was written.
            RuntimeError: A stream is being captured.
        """


def plan_writer(
    name: PlanWriterName, device: MarkedDevice, shape: PlanShape, *, has_tensors: bool = True
) -> PlanWriter:
    """Return the writer of a name, its buffers allocated.

    Args:
        name: How.
        device: Where to; a virtual one needs the host cost `plan`.
        shape: What the buffers are sized for.
        has_tensors: Whether the device computes. If not, the same calls are made, and the plan is
            kept on the host.

    Raises:
        ValueError: There is no writer of this name.
    """
    require(
        name in PLAN_WRITER_NAMES, "plan_writer", name, f"one of {', '.join(PLAN_WRITER_NAMES)}"
    )
    if name == "staged":
        return _Staged(device, shape, has_tensors=has_tensors)
    return _Blocking(device, shape, has_tensors=has_tensors, is_synced=name == "synced")


class _HostPlan:
    """Host memory for one plan, to be planned into and copied from."""

    def __init__(
        self, device: MarkedDevice, shape: PlanShape, name: str, *, pinned: bool, has_tensors: bool
    ) -> None:
        make = device.pinned if pinned else device.pageable
        specs = shape.buffers[1:]
        self._device, self._shape = device, shape
        self.buffers = PlanBuffers(*(make(s.shape, s.dtype, f"{name}_{s.name}") for s in specs))
        self._kept = None
        if not has_tensors:
            self._kept = PlanArrays(*(np.zeros(spec.shape, np.int32) for spec in specs))

    def plan(self, query_lengths: Lengths, kv_lengths: Lengths) -> int:
        """Overwrite the plan; return its number of partial tiles."""
        with self._device.range("plan"):
            self._device.elapse("plan")
            arrays = self._kept or PlanArrays(*(b.on_host().numpy() for b in self.buffers))
            return plan_into(arrays, self._shape, query_lengths, kv_lengths)

    def pairs(self, targets: PlanBuffers) -> Iterator[tuple[Buffer, Buffer]]:
        """Return what to copy, target and source; a buffer of no bytes is none."""
        pairs = zip(targets, self.buffers, strict=True)
        return ((target, source) for target, source in pairs if target.size_bytes)


class _DevicePlan:
    """The persistent buffers."""

    def __init__(self, device: MarkedDevice, shape: PlanShape) -> None:
        metadata, *written = shape.buffers
        # Two addresses of the device's own planner: their bytes are all that matters here.
        self.work_metadata = device.allocate(metadata.shape, "int64", f"plan_{metadata.name}")
        self.buffers = PlanBuffers(
            *(device.allocate(spec.shape, spec.dtype, f"plan_{spec.name}") for spec in written)
        )


class _Blocking(_DevicePlan):
    """`direct` and `synced`: copies that hold the host and are in no stream's order."""

    def __init__(
        self, device: MarkedDevice, shape: PlanShape, *, has_tensors: bool, is_synced: bool
    ) -> None:
        super().__init__(device, shape)
        self._device, self._has_tensors, self._is_synced = device, has_tensors, is_synced
        self._host = _HostPlan(device, shape, "plan_host", pinned=False, has_tensors=has_tensors)
        _, _, _, parts, *_ = shape.buffers
        self._said = device.pageable(parts.shape, parts.dtype, "plan_said")

    def write(self, query_lengths: Lengths, kv_lengths: Lengths, stream: Stream) -> int:
        device = self._device
        with device.range("PlanWriter.write"):
            if self._is_synced:
                device.sync_stream(stream)
            planned = self._host.plan(query_lengths, kv_lengths)
            for target, source in self._host.pairs(self.buffers):
                device.copy(target, source)
            # An `.item()`: it returns when the stream is done. Too late: the plan is overwritten.
            # All of the buffer, since a copy takes the first bytes and the last one is wanted.
            device.copy_async(self._said, self.buffers.reduce_indptr, stream)
            return int(self._said.on_host()[-1]) if self._has_tensors else planned


class _Staged(_DevicePlan):
    """`staged`: copies in the stream's order, from slots that are not touched until they are done.

    The slots are used in turn. One is planned into when the copies of the write before the last
    are done, which they mostly are by then.
    """

    def __init__(self, device: MarkedDevice, shape: PlanShape, *, has_tensors: bool) -> None:
        super().__init__(device, shape)
        self._device = device
        self._slots = [
            _HostPlan(device, shape, f"plan_slot{number}", pinned=True, has_tensors=has_tensors)
            for number in range(STAGING_SLOTS)
        ]
        self._copied = [device.event() for _ in self._slots]
        self._num_writes = 0

    def write(self, query_lengths: Lengths, kv_lengths: Lengths, stream: Stream) -> int:
        device, number = self._device, self._num_writes % STAGING_SLOTS
        if device.is_capturing:
            # Each replay would copy whatever plan the slot holds by then.
            raise RuntimeError("a plan is not written while a stream is being captured")
        slot, copied = self._slots[number], self._copied[number]
        with device.range("PlanWriter.write"):
            if self._num_writes >= STAGING_SLOTS:
                # Until then the device reads the slot.
                device.sync(copied)
            planned = slot.plan(query_lengths, kv_lengths)
            for target, source in slot.pairs(self.buffers):
                device.copy_async(target, source, stream)
            device.record(copied, stream)
            self._num_writes += 1
            return planned
