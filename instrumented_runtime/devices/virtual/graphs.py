"""Graphs: what is captured of each stream, and the packets a replay makes of it."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from instrumented_runtime.devices import Stream
from instrumented_runtime.devices.virtual.packets import (
    BARRIER,
    RUN,
    Action,
    Packet,
    Queue,
    Run,
    Signal,
)


class Node(NamedTuple):
    """One captured kernel (`kernel` ≥ 0) or copy (`copy` given)."""

    cost_ns: int
    kernel: int
    copy: tuple[int, int, int, int] | None
    sensitivity: float
    action: Action | None


class Moment(NamedTuple):
    """A captured event record: its branch and its number in the capture."""

    branch: "Branch"
    number: int


@dataclass(frozen=True, slots=True)
class _Step:
    """A run of a branch, or a mark that others wait for, or a wait for marks."""

    branch: int
    run: Run | None = None
    mark: int | None = None
    waits_for: int | None = None


@dataclass(slots=True, eq=False)
class Branch:
    """What is captured of one stream."""

    capture: "Capture"
    number: int
    nodes: list[Node] = field(default_factory=list)
    # Of each branch, how much of it is known to be done before what comes next in this one.
    knows: dict[int, int] = field(default_factory=dict)
    length: int = 0

    def add(self, node: Node) -> None:
        """Capture a kernel or copy."""
        self.nodes.append(node)
        self.length += 1

    def record(self) -> Moment:
        """Capture an event record."""
        return Moment(self, self.capture.mark(self))

    def wait(self, moment: Moment) -> None:
        """Capture a wait for a record of the same capture."""
        self.capture.wait(self, moment)


class Capture:
    """One capture: steps in an order in which each depends on earlier ones only."""

    def __init__(self, graph: "Graph", stream: Hashable) -> None:
        """Begin with the stream that is captured."""
        self.graph = graph
        self.is_open = True
        self._branches: dict[Hashable, Branch] = {}
        self._known_at: list[dict[int, int]] = []
        self.origin = self.branch_of(stream)

    def branch_of(self, stream: Hashable) -> Branch:
        """Return the branch of a stream, a new one if it joins now."""
        if stream not in self._branches:
            self._branches[stream] = Branch(self, len(self._branches))
        return self._branches[stream]

    def mark(self, branch: Branch) -> int:
        """Mark a place in a branch; return its number."""
        self._close_run(branch)
        number = len(self._known_at)
        self._known_at.append({**branch.knows, branch.number: branch.length})
        self.graph.steps.append(_Step(branch.number, mark=number))
        return number

    def wait(self, branch: Branch, moment: Moment) -> None:
        """Let a branch wait for a mark."""
        self._close_run(branch)
        for other, length in self._known_at[moment.number].items():
            branch.knows[other] = max(branch.knows.get(other, 0), length)
        if moment.branch is not branch:
            self.graph.steps.append(_Step(branch.number, waits_for=moment.number))

    def finish(self) -> None:
        """End the capture.

        Raises:
            RuntimeError: Work of another stream is not joined by the captured one.
        """
        for branch in self._branches.values():
            self._close_run(branch)
            if (
                branch is not self.origin
                and self.origin.knows.get(branch.number, 0) < branch.length
            ):
                raise RuntimeError(
                    "hipStreamEndCapture: a stream that joined the capture was not joined back; "
                    "record an event in it and let the captured stream wait for that"
                )
        self.graph.num_branches = len(self._branches)
        self.graph.is_complete = True

    def _close_run(self, branch: Branch) -> None:
        nodes = branch.nodes
        if not nodes:
            return
        actions = [node.action for node in nodes]
        run = Run(
            costs_ns=np.array([node.cost_ns for node in nodes], np.int64),
            kernels=np.array([node.kernel for node in nodes], np.int64),
            copies={n: node.copy for n, node in enumerate(nodes) if node.copy is not None},
            sensitivities=[node.sensitivity for node in nodes],
            actions=actions if any(actions) else [],
        )
        self.graph.steps.append(_Step(branch.number, run))
        self.graph.num_ops += len(nodes)
        branch.nodes = []


@dataclass(slots=True)
class Graph:
    """What a replay does."""

    steps: list[_Step] = field(default_factory=list)
    num_branches: int = 1
    num_ops: int = 0
    is_complete: bool = False

    def packets(
        self, queues: Sequence[Queue], arrive_ns: int, call: int, stream: int
    ) -> Iterator[tuple[Queue, Packet]]:
        """Yield the packets of one replay with the queue of each; branch n goes to `queues[n]`."""
        signals: dict[int, Signal] = {}

        def barrier(waits: Sequence[Signal], signal: Signal | None) -> Packet:
            return (BARRIER, arrive_ns, 0, call, stream, waits, None, 0.0, signal)

        for step in self.steps:
            queue = queues[step.branch]
            if step.run is not None:
                yield queue, (RUN, arrive_ns, 0, call, stream, step.run, None, 0.0, None)
            elif step.mark is not None:
                signals[step.mark] = Signal()
                yield queue, barrier((), signals[step.mark])
            elif step.waits_for is not None:
                yield queue, barrier((signals[step.waits_for],), None)


def with_jitter(packet: Packet, generator: np.random.Generator, jitter: float) -> Packet:
    """Return a packet of a run whose kernels each take 1 ± jitter of their cost."""
    kind, arrive, cost, call, stream, run, action, sensitivity, signal = packet
    if kind != RUN:
        return packet
    factors = generator.uniform(1 - jitter, 1 + jitter, len(run.costs_ns))
    costs = np.maximum(np.rint(run.costs_ns * factors), 1).astype(np.int64)
    changed = Run(
        np.where(run.kernels >= 0, costs, run.costs_ns),
        run.kernels,
        run.copies,
        run.sensitivities,
        run.actions,
    )
    return (kind, arrive, cost, call, stream, changed, action, sensitivity, signal)


class VirtualGraph:
    """A captured graph that can be replayed on any stream of its device."""

    def __init__(
        self, replay: "Callable[[VirtualGraph, Stream], None]", handle: int, name: str
    ) -> None:
        """Make a graph that holds nothing yet; `replay` launches it."""
        self._replay = replay
        self.handle = handle
        self.name = name or f"graph {handle:#x}"
        self.content = Graph()

    def replay(self, stream: Stream) -> None:
        self._replay(self, stream)
