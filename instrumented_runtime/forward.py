"""What runs on the forward stream: graphs of a decode step by padded batch size, and prefills.

A decode step is three graphs: draft, verify, draft-extend. Lengths are published between the last
two, so that the scheduler can go on while the draft catches up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from instrumented_runtime import model_kernels as work
from instrumented_runtime.compressor.overlap import MOST_TOKENS, SideStreams
from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import (
    DRAFT_EXTEND,
    DRAFT_STEP,
    FORWARD,
    FORWARD_BY_PLAN,
    SMALL_KERNEL_NS,
    TOKENS_PER_VERIFY,
    VERIFY,
    Costs,
    KernelTime,
)
from instrumented_runtime.devices import Buffer, Kernel, Stream
from instrumented_runtime.marks.marked_device import MarkedDevice, MarkedGraph
from instrumented_runtime.model import LAYERS, WIDTH
from instrumented_runtime.model_memory import ModelMemory
from instrumented_runtime.planned_prefill import PlannedPrefill, Workspace
from instrumented_runtime.scheduling.future_map import DecodeInputs, FutureMap
from instrumented_runtime.stages import Stages, Work
from instrumented_runtime.step_inputs import StepInputs


def padded_size(batch_size: int) -> int:
    """Return the batch size that graphs are captured for, at least as large."""
    for limit, multiple in ((2, 1), (8, 4), (32, 8), (1 << 62, 16)):
        if batch_size <= limit:
            return max(-(-batch_size // multiple) * multiple, 1)
    raise AssertionError("the last limit is beyond any batch")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that one pass of the decoder works on, all device.

    Attributes:
        tokens: Which, of any shape of `n` elements, int64.
        rows: Whose, the same shape.
        positions: Where in their sequence, the same shape.
        hidden: `[n, WIDTH] float32`.
        targets: The next token of each, the shape of `tokens`.
    """

    tokens: Buffer
    rows: Buffer
    positions: Buffer
    hidden: Buffer
    targets: Buffer

    def pass_through(self, memory: ModelMemory, cache: Buffer) -> dict[str, list[Work]]:
        """Return what the kernels of a pass do."""
        at = (self.rows, self.positions, memory.table)
        size = memory.page_size
        return {
            "embed": [(work.embed, [self.tokens, memory.embedding], [self.hidden])],
            "write_values": [
                (work.write_values(layer, size), [*at, self.hidden, memory.values], [cache])
                for layer in range(LAYERS)
            ],
            "attend": [
                (
                    work.attend(layer, size),
                    [*at, cache, memory.attention, memory.back],
                    [self.hidden],
                )
                for layer in range(LAYERS)
            ],
            "project": [(work.project, [self.hidden, memory.head, memory.tie], [self.targets])],
        }


class DecodeGraphs:
    """One padded batch size: its buffers and its graphs.

    Attributes:
        size: Requests, padding included.
        rows: `[size] int64`, device; 0 is padding.
        lengths: `[size]`: committed lengths before the step.
        new_lengths: `[size]`: after it.
        last_tokens: `[size]`: the token that the next step begins with.
        result: `[size, k + 2]`: how many tokens, then the target's.
    """

    def __init__(
        self,
        size: int,
        device: MarkedDevice,
        memory: ModelMemory,
        config: EngineConfig,
        costs: Costs,
    ) -> None:
        """Make the buffers."""
        self.size, self._k = size, config.speculative_tokens
        self._device, self._memory, self._costs = device, memory, costs
        k = self._k

        def int64s(name: str, *shape: int) -> Buffer:
            return device.allocate([size, *shape], "int64", f"{name}_{size}")

        def hidden(name: str, count: int) -> Buffer:
            return device.allocate([count, WIDTH], "float32", f"{name}_{size}")

        self.rows, self.lengths = int64s("rows"), int64s("lengths")
        self.new_lengths, self.last_tokens = int64s("new_lengths"), int64s("last_tokens")
        self._tokens = int64s("tokens", k + 1)
        self._draft = Tokens(
            int64s("draft_inputs"),
            self.rows,
            int64s("draft_positions"),
            hidden("draft_hidden", size),
            int64s("draft_targets"),
        )
        self._verify = Tokens(
            self._tokens,
            int64s("verify_rows", k + 1),
            int64s("verify_positions", k + 1),
            hidden("verify_hidden", size * (k + 1)),
            int64s("verify_targets", k + 1),
        )
        self.result = int64s("result", k + 2)
        self._load = Kernel("load_batch", SMALL_KERNEL_NS, work.load_batch(config.is_checked))
        self._graphs: dict[str, MarkedGraph] = {}

    def capture(self, stages: Stages, stream: Stream, sides: SideStreams | None = None) -> None:
        """Capture all graphs of this size; compressors of few tokens go to side streams."""
        if self.size * (self._k + 1) > MOST_TOKENS:
            sides = None
        requests = self.size * (self._k + 1) / TOKENS_PER_VERIFY
        plans: dict[str, tuple[Sequence[KernelTime], dict[str, list[Work]]]]
        plans = {"verify": (VERIFY, self._verify_work())}
        if self._k:
            steps = [self._draft_work(place) for place in range(self._k)]
            draft = {role: [item for step in steps for item in step[role]] for role in steps[0]}
            extend = self._verify.pass_through(self._memory, self._memory.draft_cache)
            plans["draft"] = (DRAFT_STEP * self._k, draft)
            plans["draft-extend"] = (DRAFT_EXTEND, extend)
        for name, (kernels, does) in plans.items():
            # Assumed: to commit what was verified takes the same at any batch.
            grown = 1 if name == "draft-extend" else requests
            cost = partial(self._costs.decode_ns, requests=grown)
            mind = partial(self._costs.sensitivity, requests=grown)
            # Libraries load and take memory at first use, which a capture cannot hold.
            stages.launch([kernel for kernel in kernels if kernel.role], cost, does, stream)
            with self._device.capture(stream, f"{name} {self.size}") as done:
                stages.launch(kernels, cost, does, stream, sides=sides, sensitivity=mind)
            self._graphs[name] = done[0]

    def load(self, inputs: DecodeInputs, future: FutureMap, stream: Stream) -> None:
        """Take the batch's rows, lengths and last tokens into the graphs' buffers."""
        reads = [inputs.rows, inputs.seq_lens, future.output_tokens]
        writes = [self.rows, self.lengths, self._tokens]
        self._device.launch(self._load, stream, reads, writes)

    def replay(self, name: str, stream: Stream) -> None:
        """Launch the graph of a stage: `draft`, `verify` or `draft-extend`."""
        with self._device.range(name):
            self._device.replay(self._graphs[name], stream)

    def _draft_work(self, place: int) -> dict[str, list[Work]]:
        draft, tokens = self._draft, self._tokens
        at = [self.rows, self.lengths]
        inputs = (work.draft_inputs(place), [*at, tokens], [draft.tokens, draft.positions])
        reads = [*at, self._memory.table, draft.targets]
        return {
            "draft_inputs": [inputs],
            **draft.pass_through(self._memory, self._memory.draft_cache),
            "draft_token": [(work.draft_token(place), reads, [tokens])],
        }

    def _verify_work(self) -> dict[str, list[Work]]:
        verify = self._verify
        at = [self.rows, self.lengths]
        inputs = [*at, self._memory.steps], [verify.rows, verify.positions]
        outputs = (
            [*at, self._tokens, verify.targets],
            [self.result, self.new_lengths, self.last_tokens],
        )
        return {
            "verify_inputs": [(work.verify_inputs, *inputs)],
            **verify.pass_through(self._memory, self._memory.cache),
            "accept": [(work.accept, *outputs)],
        }


class Prefill:
    """A prefill step: tokens of prompts, then one token of each request that decodes beside them.

    Attributes:
        last_tokens: `[2 · max_running] int64`, device: what follows each sequence.
        plans: Plans its attention; None if that is not planned.
    """

    def __init__(
        self, device: MarkedDevice, memory: ModelMemory, config: EngineConfig, costs: Costs
    ) -> None:
        """Make the buffers."""
        self._device, self._memory, self._costs = device, memory, costs
        self.plans = PlannedPrefill(device, config, memory) if config.plan_writer else None
        count = config.chunk_tokens + config.max_running
        self._hidden = device.allocate([count, WIDTH], "float32", "prefill_hidden")
        self._targets = device.allocate([count], "int64", "prefill_targets")
        self.last_tokens = device.allocate([2 * config.max_running], "int64", "prefill_last_tokens")
        self._pick = Kernel("pick_last_tokens", SMALL_KERNEL_NS, work.pick_last)

    def launch(
        self,
        stages: Stages,
        inputs: StepInputs,
        num_tokens: int,
        stream: Stream,
        scratch: Workspace | None = None,
    ) -> None:
        """Run the target over all tokens and pick what follows each sequence.

        Args:
            stages: Launches.
            inputs: The tokens.
            num_tokens: How many are real; decides how long it takes.
            stream: The forward's.
            scratch: Of the step's plan; None if attention is not planned.
        """
        cost = partial(self._costs.prefill_ns, tokens=num_tokens)
        does = self._tokens(inputs).pass_through(self._memory, self._memory.cache)
        if self.plans is not None and scratch is not None:
            _, rows, positions = inputs.tokens
            does |= self.plans.does(rows, positions, self._hidden, scratch)
            stages.launch(FORWARD_BY_PLAN, cost, does, stream)
            self.plans.are_queued(stream)
        else:
            stages.launch(FORWARD, cost, does, stream)
        reads = [self._targets, inputs.last_index]
        self._device.launch(self._pick, stream, reads, [self.last_tokens])

    def extend_draft(
        self, stages: Stages, inputs: StepInputs, num_tokens: int, stream: Stream
    ) -> None:
        """Let the draft take over the same tokens; arguments as `launch`."""
        cost = partial(self._costs.prefill_ns, tokens=num_tokens)
        does = self._tokens(inputs).pass_through(self._memory, self._memory.draft_cache)
        stages.launch(DRAFT_EXTEND, cost, does, stream)

    def _tokens(self, inputs: StepInputs) -> Tokens:
        return Tokens(*inputs.tokens, self._hidden, self._targets)
