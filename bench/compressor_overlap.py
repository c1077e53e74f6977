"""What a GPU gains when compressors run on side streams: their GEMMs, in line against overlapped.

    python bench/compressor_overlap.py [--hidden 7168] [--tokens 8] [--layers 16] [--side-streams 2]

A graph of layers, each a path to queries, keys and values beside the GEMMs of its compressors, by
turns one of ratio 4 with its indexer's and one of ratio 128. The next layer needs all of them. Both
ways are captured from the same weights and replayed by turns, which of them first by turns too; a
figure is the wall time of some replays over their number. Prints one line; exits 1 when the two do
not give the same bytes.

What follows a compressor's GEMM, attention and experts are left out, so that a share of this time
is not one of a decode step.
"""

import argparse
import statistics
import sys
from functools import partial
from typing import TYPE_CHECKING

from instrumented_runtime.compressor.overlap import (
    MOST_TOKENS,
    Job,
    Launch,
    LayerInputs,
    SideStreams,
    prepare,
    prepare_multi_stream,
)
from instrumented_runtime.devices import Buffer, Device, Kernel, Stream
from instrumented_runtime.devices.torch_device import TorchDevice
from instrumented_runtime.marks import Marks
from instrumented_runtime.marks.marked_device import MarkedDevice, MarkedGraph

if TYPE_CHECKING:
    from torch import Tensor

# Columns of the GEMMs: queries' and keys' first projection, its part for queries, queries of 8
# heads of 512, and the compressors'.
QKV_COLUMNS, Q_RANK, Q_COLUMNS = 1536, 1024, 4096
RATIO_4, INDEXER, RATIO_128 = 2048, 512, 1024
WARM_UP_REPLAYS = 20


def project(source: "Tensor", weight: "Tensor", target: "Tensor") -> None:
    """Set `target [n, columns]` to `source [n, rows] @ weight [rows, columns]`."""
    import torch

    torch.mm(source, weight, out=target)


def normalise(latent: "Tensor", queries: "Tensor") -> None:
    """Normalise the part of `latent` that becomes queries."""
    part = latent[:, :Q_RANK].float()
    queries.copy_(part * part.square().mean(1, keepdim=True).add(1e-6).rsqrt())


def store(latent: "Tensor", kv: "Tensor") -> None:
    """Store the rest of `latent` as keys and values."""
    kv.copy_(latent[:, Q_RANK:])


def mix(*tensors: "Tensor") -> None:
    """Make the next layer's input from all of a layer's results and its own input."""
    *results, hidden = tensors
    for result in results:
        hidden[:, : result.shape[1]] += result[:, : hidden.shape[1]]
    # Else it would grow from layer to layer.
    hidden.mul_(0.5)


def fill(scale: float, target: "Tensor") -> None:
    """Draw parameters, the same in every process."""
    target.normal_(0, scale)


def clear(target: "Tensor") -> None:
    """Forget what was there."""
    target.zero_()


def copy(source: "Tensor", target: "Tensor") -> None:
    """Begin anew."""
    target.copy_(source)


class Layers:
    """Weights and buffers of all layers, and the two ways to run them."""

    def __init__(self, device: Device, hidden: int, tokens: int, layers: int, sides: int) -> None:
        """Allocate and fill everything."""
        self.device = MarkedDevice(device, Marks())
        self.main = self.device.stream("main")
        self._sides = SideStreams(self.device, sides)
        self._rows, self._width = tokens, hidden
        self._source = self._filled("source", 1.0, tokens, hidden)
        self.hidden = self._buffer("hidden", tokens, hidden)
        self.results: list[Buffer] = []
        self._layers = [self._layer(number) for number in range(layers)]
        self.device.synchronize()

    def _buffer(self, name: str, *shape: int) -> Buffer:
        return self.device.allocate(shape, "bfloat16", name)

    def _filled(self, name: str, scale: float, *shape: int) -> Buffer:
        buffer = self._buffer(name, *shape)
        self.device.synchronize()
        self._launch(Launch(Kernel("fill", 1_000, partial(fill, scale)), [], [buffer]), self.main)
        return buffer

    def _launch(self, launch: Launch, stream: Stream) -> None:
        self.device.launch(launch.kernel, stream, launch.reads, launch.writes)

    def _gemm(self, name: str, source: Buffer, rows: int, columns: int) -> Launch:
        weight = self._filled(f"{name}_weight", rows**-0.5, rows, columns)
        target = self._buffer(name, self._rows, columns)
        return Launch(Kernel(name, 5_000, project), [source, weight], [target])

    def _compressor(self, name: str, columns: int) -> tuple[Job, Buffer]:
        gemm = self._gemm(name, self.hidden, self._width, columns)
        return partial(self._launch, gemm), gemm.writes[0]

    def _layer(self, number: int) -> tuple[LayerInputs, Launch]:
        down = self._gemm("wqkv_a", self.hidden, self._width, QKV_COLUMNS)
        (latent,) = down.writes
        queries = self._buffer("queries", self._rows, Q_RANK)
        kv = self._buffer("kv", self._rows, QKV_COLUMNS - Q_RANK)
        up = self._gemm("wq_b", queries, Q_RANK, Q_COLUMNS)
        qkv = [
            down,
            Launch(Kernel("q_norm", 3_000, normalise), [latent], [queries]),
            up,
            Launch(Kernel("store", 3_000, store), [latent], [kv]),
        ]
        indexer = None
        results = [up.writes[0], kv]
        core, result = self._compressor("core", RATIO_128 if number % 2 else RATIO_4)
        results.append(result)
        if number % 2 == 0:
            indexer, result = self._compressor("indexer", INDEXER)
            results.append(result)
        self.results += results
        inputs = LayerInputs(qkv, up.writes[0], kv, core, indexer)
        return inputs, Launch(Kernel("mix", 3_000, mix), results, [self.hidden])

    def run(self, *, is_on: bool) -> None:
        """Queue all layers."""
        self._launch(Launch(Kernel("copy", 1_000, copy), [self._source], [self.hidden]), self.main)
        for inputs, mixed in self._layers:
            if is_on:
                prepare_multi_stream(self.device, inputs, self.main, self._sides)
            else:
                prepare(self.device, inputs, self.main)
            self._launch(mixed, self.main)

    def graph(self, *, is_on: bool) -> MarkedGraph:
        """Capture all layers; libraries take their memory in a run before."""
        self.run(is_on=is_on)
        self.device.synchronize()
        with self.device.capture(self.main, "on" if is_on else "off") as done:
            self.run(is_on=is_on)
        return done[0]

    def outputs(self, graph: MarkedGraph) -> list["Tensor"]:
        """Return what a replay leaves in every buffer, from buffers that hold nothing."""
        for buffer in (*self.results, self.hidden):
            self._launch(Launch(Kernel("clear", 1_000, clear), [], [buffer]), self.main)
        self.device.replay(graph, self.main)
        found: list[Tensor] = []

        def keep(tensor: "Tensor") -> None:
            found.append(tensor.clone())

        for buffer in (*self.results, self.hidden):
            self._launch(Launch(Kernel("keep", 1_000, keep), [buffer]), self.main)
        self.device.synchronize()
        return found


def replay_ms(layers: Layers, graph: MarkedGraph, count: int) -> float:
    """Return the wall time of one replay, of some without a pause."""
    device = layers.device.device
    device.synchronize()
    began_ns = device.now_ns
    for _ in range(count):
        layers.device.replay(graph, layers.main)
    device.synchronize()
    return (device.now_ns - began_ns) / count / 1e6


def compare(layers: Layers, rounds: int, replays: int) -> tuple[dict[bool, list[float]], bool]:
    """Return times by whether it is overlapped, and whether both leave the same bytes."""
    import torch

    graphs = {is_on: layers.graph(is_on=is_on) for is_on in (False, True)}
    off, on = (layers.outputs(graphs[is_on]) for is_on in (False, True))
    is_equal = all(map(torch.equal, off, on)) and all(bool(one.any()) for one in on)
    times: dict[bool, list[float]] = {False: [], True: []}
    for graph in graphs.values():
        replay_ms(layers, graph, WARM_UP_REPLAYS)
    for number in range(rounds):
        for is_on in (False, True) if number % 2 else (True, False):
            times[is_on].append(replay_ms(layers, graphs[is_on], replays))
    return times, is_equal


def main() -> int:
    """Measure, print, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, choices=[4096, 7168], default=7168)
    parser.add_argument("--tokens", type=int, default=8, help=f"at most {MOST_TOKENS}")
    for name, default in (("layers", 16), ("side-streams", 2), ("rounds", 30), ("replays", 50)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    if not 1 <= given.tokens <= MOST_TOKENS:
        parser.error(f"--tokens: {given.tokens} is not allowed; give 1 to {MOST_TOKENS}")
    try:
        device = TorchDevice()
    except RuntimeError as error:
        parser.error(str(error))
    device.torch.manual_seed(0)
    layers = Layers(device, given.hidden, given.tokens, given.layers, given.side_streams)
    times, is_equal = compare(layers, given.rounds, given.replays)
    off, on = (statistics.median(times[is_on]) for is_on in (False, True))
    spreads = [f"{min(times[is_on]):.3f}–{max(times[is_on]):.3f}" for is_on in (False, True)]
    print(
        f"hidden {given.hidden}, {given.tokens} tokens, {given.layers} layers, "
        f"{given.side_streams} side streams: off {off:.3f} ms ({spreads[0]}), "
        f"on {on:.3f} ms ({spreads[1]}), {(on / off - 1) * 100:+.1f} %, n = {given.rounds}; "
        f"outputs {'equal' if is_equal else 'DIFFER'}; "
        f"{device.name}, torch {device.torch.__version__}"
    )
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
