"""Plans a prefill's attention on the host while the prefill before it may still be queued.

The plan lies in buffers that persist from step to step; `prefill.staging` brings it there. As in
vLLM the scratch for parts of shared tiles is a view of a workspace, and an empty one, whose address
is null, for a plan without such tiles. What another step's plan stores beyond the view is lost in
the workspace; beyond null it is a fault.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from instrumented_runtime import planned_kernels as work
from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import NUM_LAYERS
from instrumented_runtime.devices import Buffer, Event, Stream
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.model import LAYERS, WIDTH
from instrumented_runtime.model_memory import ModelMemory
from instrumented_runtime.prefill.plan_layout import PlanShape
from instrumented_runtime.prefill.staging import PlanWriter, plan_writer
from instrumented_runtime.scheduling.scheduler import Chunk
from instrumented_runtime.stages import Work

# Of an MI355X.
COMPUTE_UNITS = 256


class PlanUpdate(NamedTuple):
    """One plan that was written.

    Attributes:
        began_ns: Before it, by the device's clock.
        read: Recorded after the last kernel that reads the plan.
    """

    began_ns: int
    read: Event


@dataclass(slots=True)
class Workspace:
    """Where parts of shared tiles go, `[rows, WIDTH] float32` each, device.

    The rows are those of the whole workspace, or none.
    """

    lse: Buffer
    output: Buffer


class PlannedPrefill:
    """Plans prefills, and knows what their attention kernels do.

    Attributes:
        writer: Brings plans to the device.
        updates: What was written, in order, once `watch` was called.
    """

    def __init__(self, device: MarkedDevice, config: EngineConfig, memory: ModelMemory) -> None:
        """Allocate the plan's buffers."""
        assert config.plan_writer is not None
        self._device, self._config, self._memory = device, config, memory
        shape = PlanShape(
            max_batch=config.max_running,
            kv_heads=WIDTH,
            compute_units=COMPUTE_UNITS,
            max_query_tokens=min(config.chunk_tokens, config.max_tokens),
        )
        self.writer: PlanWriter = plan_writer(
            config.plan_writer, device, shape, has_tensors=_has_tensors(device)
        )
        self._scratch = {
            bool(rows): Workspace(
                *(
                    device.allocate([rows, WIDTH], "float32", name)
                    for name in ("prefill_split_lse", "prefill_split_output")
                )
            )
            for rows in (0, shape.max_partials * shape.query_tile)
        }
        self.updates: list[PlanUpdate] | None = None

    def watch(self) -> None:
        """Keep from now on when plans are written and when they have been read."""
        self.updates = []

    def plan(self, chunks: Sequence[Chunk], stream: Stream) -> Workspace | None:
        """Write the plan of a step.

        A prompt that goes on behind what was computed before, by an earlier chunk or found in the
        prefix cache, has keys that are not of this step. As in vLLM such a step is not planned.

        Returns:
            Workspace of the step's kernels; None if not planned.
        """
        if any(chunk.start for chunk in chunks):
            return None
        lengths = [chunk.end - chunk.start for chunk in chunks]
        if self.updates is not None:
            self.updates.append(PlanUpdate(self._device.device.now_ns, self._device.event()))
        return self._scratch[self.writer.write(lengths, lengths, stream) > 0]

    def are_queued(self, stream: Stream) -> None:
        """Note that all kernels of the step that was planned last are queued."""
        if self.updates is not None:
            self._device.record(self.updates[-1].read, stream)

    def does(
        self, rows: Buffer, positions: Buffer, hidden: Buffer, scratch: Workspace
    ) -> dict[str, list[Work]]:
        """Return what the attention kernels of all layers do.

        The decoder has fewer layers than the modelled one has kernels for. Those of the other
        layers, and all if nothing is computed, touch the scratch as the plan says.
        """
        plan, memory, config = self.writer.buffers, self._memory, self._config
        work_maps = [plan.work_indptr, plan.work_info]
        reduce_maps = [plan.reduce_indptr, plan.reduce_final_map, plan.reduce_partial_map]
        split = [scratch.lse, scratch.output]
        attend: list[Work] = []
        reduce: list[Work] = []
        if config.has_tensors:
            reads = [rows, positions, memory.table, memory.cache, memory.attention, memory.back]
            for layer in range(LAYERS):
                function = work.attend_by_plan(layer, memory.page_size, config.chunk_tokens)
                attend.append((function, [*reads, *work_maps], [hidden, *split]))
                reduce.append((work.reduce_by_plan, [*reduce_maps, *split], [hidden]))
        others = NUM_LAYERS - len(attend)
        attend += [(work.touch_by_plan, work_maps, split)] * others
        reduce += [(work.touch_reduce, [*reduce_maps, *split], [])] * others
        return {"attend_by_plan": attend, "reduce_by_plan": reduce}


def _has_tensors(device: MarkedDevice) -> bool:
    """Whether buffers hold anything, which is not the engine's to say: it may compute nothing."""
    try:
        device.device.host_buffer([1], "int64", name="probe").on_host()
    except ValueError:
        return False
    return True
