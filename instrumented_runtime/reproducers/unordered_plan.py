"""A prefill that is queued while the host overwrites the plan that drives it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import NDArray

from instrumented_runtime.config import PlanWriterName
from instrumented_runtime.devices import Buffer, Kernel, MemoryFault
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.prefill.attention import (
    Batch,
    ReduceMaps,
    Scratch,
    WorkMaps,
    mla_prefill_ps_fwd,
    mla_reduce,
)
from instrumented_runtime.prefill.plan_layout import PlanShape
from instrumented_runtime.prefill.staging import plan_writer
from instrumented_runtime.reproducers import Outcome, Reproducer
from instrumented_runtime.reproducers.lab import Lab

if TYPE_CHECKING:
    from torch import Tensor

# The plan of the first has no shared tile and so no scratch; that of the others has 30 parts.
FIRST, SECOND = (8175,), (3000, 1000, 4000)
HEADS, QK_WIDTH, V_WIDTH, COMPUTE_UNITS = 16, 16, 16, 256
TOLERANCE = 1e-5
# Of the result so many rows apart are held against attention in float64.
_EVERY = 16
_SCALE = QK_WIDTH**-0.5
# While it runs the second plan is written. Behind it wait the kernels of the first.
_DELAY = Kernel("delay", 20_000_000)


def _forward(*tensors: "Tensor") -> None:
    batch, work, scratch = Batch(*tensors[:6]), WorkMaps(*tensors[6:8]), Scratch(*tensors[8:10])
    mla_prefill_ps_fwd(batch, work, scratch, tensors[10], softmax_scale=_SCALE)


def _reduce(*tensors: "Tensor") -> None:
    mla_reduce(Scratch(*tensors[:2]), ReduceMaps(*tensors[2:5]), tensors[5])


_FORWARD = Kernel("mla_prefill_ps_asm_fwd", 500_000, _forward)
_REDUCE = Kernel("mla_reduce_v1", 100_000, _reduce)


class _Prefill:
    """One prefill: its batch and its output on the device, and what the output has to be."""

    def __init__(self, device: MarkedDevice, name: str, lengths: Sequence[int], seed: int) -> None:
        draw = np.random.default_rng(seed)
        tokens = sum(lengths)
        self.lengths = lengths
        self._ends = np.cumsum([0, *lengths])
        self._qkv = [
            draw.standard_normal((tokens, HEADS, width)).astype(np.float32)
            for width in (QK_WIDTH, QK_WIDTH, V_WIDTH)
        ]
        values = [*self._qkv, *(array.astype(np.int32) for array in (self._ends, self._ends))]
        values.append(np.arange(tokens, dtype=np.int32))
        names = Batch._fields
        self.batch = [
            _loaded(device, array, f"{name}_{part}")
            for part, array in zip(names, values, strict=True)
        ]
        shape = (tokens, HEADS, V_WIDTH)
        self.output = device.allocate(shape, "float32", f"{name}_output")
        self.result = device.pinned(shape, "float32", f"{name}_result")

    def error(self) -> float:
        """Return the largest deviation of the result from attention in float64."""
        result = self.result.on_host().numpy()
        errors = [
            np.abs(result[row] - self._expected(row, start)).max()
            for start, end in zip(self._ends[:-1], self._ends[1:], strict=True)
            for row in range(start, end, _EVERY)
        ]
        return float(np.max(errors))  # unlike `max`, it keeps what is not a number

    def _expected(self, row: int, start: int) -> NDArray[np.float64]:
        """Return `[heads, v_width]`: one row of causal attention over its sequence."""
        q, k, v = self._qkv
        keys, values = k[start : row + 1].astype(np.float64), v[start : row + 1].astype(np.float64)
        scores = np.einsum("hd,nhd->hn", q[row].astype(np.float64), keys) * _SCALE
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        expected: NDArray[np.float64] = np.einsum("hn,nhd->hd", weights, values)
        return expected


class _Program:
    """Two prefills whose kernels read the same persistent plan."""

    def __init__(
        self,
        device: MarkedDevice,
        writer: PlanWriterName,
        lengths: tuple[Sequence[int], Sequence[int]],
        *,
        may_fault: bool,
    ) -> None:
        self._device = device
        most = max(max(some) for some in lengths)
        self._shape = PlanShape(
            max_batch=max(map(len, lengths)),
            kv_heads=HEADS,
            compute_units=COMPUTE_UNITS,
            max_query_tokens=most,
        )
        self._stream = device.stream("prefill")
        device.marks.stream(device.device.null_stream)
        self._writer = plan_writer(writer, device, self._shape)
        self._may_fault = may_fault
        self.prefills = [
            _Prefill(device, name, some, seed)
            for seed, (name, some) in enumerate(zip("ab", lengths, strict=True))
        ]
        device.synchronize()

    def run(self) -> None:
        """Plan the first, queue it, plan the second, queue it; each step is one."""
        for number, prefill in enumerate(self.prefills):
            with self._device.marks.step(number, kind="prefill"):
                parts = self._write(prefill)
                if number == 0:
                    self._device.launch(_DELAY, self._stream)
                self._launch(prefill, parts)
        self._device.synchronize()
        for prefill in self.prefills:
            self._device.copy_async(prefill.result, prefill.output, self._stream)
        self._device.synchronize()

    def warm_up(self) -> None:
        """Run each alone, so that kernels are compiled, and clear what came out."""
        for prefill in self.prefills:
            self._launch(prefill, self._write(prefill))
            self._device.synchronize()
            clear = Kernel("clear", 1_000, lambda output: output.zero_())
            self._device.launch(clear, self._stream, [], [prefill.output])
        self._device.synchronize()

    def _write(self, prefill: _Prefill) -> int:
        return self._writer.write(prefill.lengths, prefill.lengths, self._stream)

    def _launch(self, prefill: _Prefill, parts: int) -> None:
        # As small as the plan allows. A store beyond it would cost a real device its process.
        rows = (parts if self._may_fault else self._shape.max_partials) * self._shape.query_tile
        scratch = [
            self._device.allocate(shape, "float32", name, stream=self._stream)
            for name, shape in (
                ("scratch_output", (rows, HEADS, V_WIDTH)),
                ("scratch_lse", (rows, HEADS)),
            )
        ]
        plan: Sequence[Buffer] = self._writer.buffers
        reads, writes = [*prefill.batch, *plan[:2]], [*scratch, prefill.output]
        self._device.launch(_FORWARD, self._stream, reads, writes)
        self._device.launch(_REDUCE, self._stream, [*scratch, *plan[2:]], [prefill.output])


def _loaded(device: MarkedDevice, values: NDArray[np.generic], name: str) -> Buffer:
    source = device.pageable(values.shape, values.dtype.name, f"{name}_host")
    source.on_host().copy_(source.on_host().new_tensor(values))
    buffer = device.allocate(values.shape, values.dtype.name, name)
    device.synchronize()  # new memory is cleared on another stream
    device.copy(buffer, source)
    return buffer


def run(
    lab: Lab, first: Sequence[int] = FIRST, second: Sequence[int] = SECOND
) -> Iterator[Outcome]:
    for mode, (writer, rocm) in _modes(lab).items():
        options: Mapping[str, object] = {"rocm": rocm, "host_costs_ns": {"plan": 100_000}}
        yield _outcome(lab, mode, options, writer, (first, second))


def _modes(lab: Lab) -> dict[str, tuple[PlanWriterName, str]]:
    """Return writer and behaviour of ROCm, empty on a real device, by the name of the mode."""
    writers: tuple[PlanWriterName, ...] = get_args(PlanWriterName)
    return {
        f"{writer}-rocm-{rocm}" if rocm else writer: (writer, rocm)
        for writer in writers
        for rocm in (("7.2", "10") if lab.is_model else ("",))
    }


def _outcome(
    lab: Lab,
    mode: str,
    options: Mapping[str, object],
    writer: PlanWriterName,
    lengths: tuple[Sequence[int], Sequence[int]],
) -> Outcome:
    figures: dict[str, str] = {}
    is_fixed = writer != "direct"
    with lab.mode(mode, options) as device:
        program = _Program(device, writer, lengths, may_fault=lab.is_model)
        try:
            if not lab.is_model:
                program.warm_up()
            program.run()
        except MemoryFault as fault:
            figures["fault at"] = f"{fault.address:#x}"
            problem = f"{fault.kernel} faulted, near {fault.nearest}"
            return Outcome(mode, is_fixed, problem, figures)
        errors = [prefill.error() for prefill in program.prefills]
    figures |= {
        f"error of {name}": f"{error:.1e}" for name, error in zip("AB", errors, strict=True)
    }
    wrong = [name for name, error in zip("AB", errors, strict=True) if not error <= TOLERANCE]
    problem = f"the result of {' and '.join(wrong)} is wrong" if wrong else ""
    return Outcome(mode, is_fixed, problem, figures)


REPRODUCER = Reproducer(
    "unordered-plan",
    "A prefill is queued, and the host overwrites its plan by copies that no stream orders.",
    lambda lab: tuple(_modes(lab)),
    run,
)
