"""Puts a step onto the device: what the scheduler prepares on its stream, then the forward."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from instrumented_runtime import model_kernels
from instrumented_runtime.compressor.overlap import SideStreams, is_overlap_on
from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import PREPARE, SMALL_KERNEL_NS, Costs
from instrumented_runtime.devices import Kernel
from instrumented_runtime.forward import DecodeGraphs, Prefill, padded_size
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.model import DraftMisses
from instrumented_runtime.model_memory import load_parameters, model_memory
from instrumented_runtime.request import Request
from instrumented_runtime.scheduling.future_map import FutureMap
from instrumented_runtime.scheduling.scheduler import Batch
from instrumented_runtime.scheduling.stream_policy import StreamPolicy
from instrumented_runtime.stages import Stages
from instrumented_runtime.step_inputs import StepInputs
from instrumented_runtime.transfers import HostCopy

# One runs and one is prepared; the one before those is known to be done.
STEPS_UNDER_WAY = 2


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that was launched, and how to know what it said."""

    batch: Batch
    inputs: StepInputs


class Launcher:
    """The streams, and all memory and graphs that a step needs.

    Attributes:
        device: What it puts them onto.
        plans: Plans the attention of prefills; None if that is not planned.
    """

    def __init__(
        self, device: MarkedDevice, config: EngineConfig, costs: Costs, policy: StreamPolicy
    ) -> None:
        """Allocate everything and capture the graphs of every batch size."""
        self._config = config
        self.device = self._device = device
        self._forward = device.stream("forward")
        self._schedule = policy.place(self._forward, lambda: device.stream("schedule"))
        self._memory = model_memory(device, config)
        self._future = self._future_map(policy)
        self._stages = Stages(device, computes=config.has_tensors)
        is_on = is_overlap_on(config.compressor_overlap, platform=device.device.platform)
        sides = SideStreams(device, config.side_streams) if is_on else None
        parts = (device, self._memory, config, costs)
        self._prefill = Prefill(*parts)
        self.plans = self._prefill.plans
        self._inputs = [StepInputs(device, config, number) for number in range(STEPS_UNDER_WAY)]
        self._prepared = [device.event() for _ in range(STEPS_UNDER_WAY)]
        self._admit = Kernel("admit", SMALL_KERNEL_NS, model_kernels.scatter)
        # By row, what is committed once all launched steps are done; without speculation only.
        self._lengths = [0] * (config.max_running + 1)
        sizes = sorted({padded_size(size) for size in range(1, config.max_running + 1)})
        self._graphs = {size: DecodeGraphs(size, *parts) for size in sizes}
        # Padding reads what nobody wrote, and memory that is used again is as it was left.
        clear = Kernel("clear", SMALL_KERNEL_NS, model_kernels.clear)
        device.synchronize()
        for buffer in device.buffers:
            device.launch(clear, self._forward, [], [buffer])
        load_parameters(device, self._memory, config, self._forward)
        self._future.reset(self._forward)
        for graphs in self._graphs.values():
            graphs.capture(self._stages, self._forward, sides)

    def launch(self, batch: Batch, number: int, misses: Sequence[DraftMisses]) -> Launched:
        """Queue a whole step.

        Args:
            batch: What it computes.
            number: Counts all steps; the one two before has to be done.
            misses: Of the draft, of each request that is admitted.
        """
        inputs = self._inputs[number % STEPS_UNDER_WAY]
        prepared = self._prepared[number % STEPS_UNDER_WAY]
        self._prepare(batch, inputs, misses)
        if self._schedule is not self._forward:
            self._device.record(prepared, self._schedule)
            self._device.wait(prepared, self._forward)
        if batch.chunks:
            self._launch_prefill(batch, inputs)
        else:
            self._launch_decode(batch, inputs)
        return Launched(batch, inputs)

    def _prepare(self, batch: Batch, inputs: StepInputs, misses: Sequence[DraftMisses]) -> None:
        """Do what comes before the forward, on the scheduler's stream."""
        stream = self._schedule
        inputs.upload_decode(batch.decode, stream)
        if batch.chunks:
            inputs.upload_prefill(batch, misses, stream)
        elif self._config.is_speculative:
            self._future.resolve_seq_lens_cpu(inputs.decode, stream)
        else:
            inputs.upload_lengths([self._lengths[one.row] for one in batch.decode], stream)
        with self._device.range("prepare"):
            self._device.elapse("prepare")
            reads = [inputs.decode.rows, inputs.decode.seq_lens]
            for kernel in self._prepare_kernels(len(batch.decode)):
                self._device.launch(kernel, stream, reads)

    def _prepare_kernels(self, size: int) -> Iterator[Kernel]:
        for name, request_ns in PREPARE:
            yield self._stages.kernel(name, SMALL_KERNEL_NS + request_ns * size)

    def _launch_prefill(self, batch: Batch, inputs: StepInputs) -> None:
        stream, count = self._forward, len(batch.chunks) + len(batch.decode)
        rows, ends = inputs.sequences
        # The prefill before may still be queued, and read the plan before this one.
        scratch = self.plans.plan(batch.chunks, stream) if self.plans else None
        if batch.admitted:
            self._device.launch(self._admit, stream, inputs.admitted, [self._memory.table])
        tails = (inputs.tokens[0], inputs.tokens[2], ends)
        self._future.resolve_mixed_spec_tails(inputs.decode, tails, stream)
        num_tokens = sum(chunk.end - chunk.start for chunk in batch.chunks) + len(batch.decode)
        with self._device.range("prefill"):
            self._prefill.launch(self._stages, inputs, num_tokens, stream, scratch)
        self._future.publish(rows, ends, count, stream)
        if self._config.is_speculative:
            with self._device.range("draft-extend"):
                self._prefill.extend_draft(self._stages, inputs, num_tokens, stream)
        self._future.stash(rows, self._prefill.last_tokens, count, stream)
        inputs.result.start(self._prefill.last_tokens, stream)
        for chunk in batch.chunks:
            self._lengths[chunk.request.row] = chunk.end
        self._advance(batch.decode)

    def _launch_decode(self, batch: Batch, inputs: StepInputs) -> None:
        stream, count = self._forward, len(batch.decode)
        graphs = self._graphs[padded_size(count)]
        graphs.load(inputs.decode, self._future, stream)
        if self._config.is_speculative:
            graphs.replay("draft", stream)
        graphs.replay("verify", stream)
        self._future.publish(graphs.rows, graphs.new_lengths, count, stream)
        if self._config.is_speculative:
            graphs.replay("draft-extend", stream)
        self._future.stash(graphs.rows, graphs.last_tokens, count, stream)
        inputs.result.start(graphs.result, stream)
        self._advance(batch.decode)

    def _advance(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._lengths[request.row] += 1

    def _future_map(self, policy: StreamPolicy) -> FutureMap:
        config = self._config
        copy = None
        if config.needs_cpu_seq_lens:
            shape, has_tensors = [config.max_running], config.has_tensors
            copy = HostCopy(self._device, shape, "seq_lens_host", has_tensors=has_tensors)
        return FutureMap(
            self._device,
            config.max_running + 1,
            policy,
            is_speculative=config.is_speculative,
            is_checked=config.is_checked,
            seq_lens_copy=copy,
            tails_at=(config.chunk_tokens, config.max_running),
        )
