"""Compressors beside the path to queries, keys and values: the same results, whatever runs when."""

import numpy as np
import polars as pl
import pytest
from engine_runs import (
    device_of,
    engine_of,
    expected_outputs,
    outputs,
    recorded,
    serve_six,
    six_requests,
)
from in_order_device import InOrderDevice

from instrumented_runtime.compressor.compressor import (
    Compressor,
    CompressorShape,
    CompressorSizes,
    Parameters,
)
from instrumented_runtime.compressor.overlap import (
    Launch,
    LayerInputs,
    SideStreams,
    is_overlap_on,
    prepare,
    prepare_multi_stream,
)
from instrumented_runtime.config import EngineConfig
from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.marks import Marks
from instrumented_runtime.marks.marked_device import MarkedDevice

CORE = CompressorShape(hidden_dim=12, ratio=4, head_dim=8, rope_dim=4)
INDEXER = CompressorShape(hidden_dim=12, ratio=4, head_dim=8, rope_dim=4, is_indexer=True)
TOKENS = 12


@pytest.mark.parametrize(
    ("asked", "platform", "is_on"),
    [
        (None, "hip", False),
        (None, "cuda", True),
        (True, "hip", True),
        (True, "cuda", True),
        (False, "hip", False),
        (False, "cuda", False),
    ],
)
def test_it_is_on_as_asked_and_if_nobody_asked_not_on_hip(asked, platform, is_on):
    assert is_overlap_on(asked, platform=platform) == is_on
    device = InOrderDevice(platform)
    made = []
    of_device = device.stream
    device.stream = lambda **options: made.append(options["name"]) or of_device(**options)
    engine_of(device, compressor_overlap=asked)
    assert ("side 0" in made) == is_on


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"side_streams": 0}, "side_streams: 0 is not allowed; give a whole number ≥ 1"),
        ({"side_streams": True}, "side_streams: True is not allowed"),
        ({"compressor_overlap": 1}, "compressor_overlap: 1 is not allowed; give true, false or no"),
        ({"compressor_overlap": "on"}, "compressor_overlap: 'on' is not allowed"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(options, said):
    with pytest.raises(ValueError) as raised:
        EngineConfig.from_options(options)
    assert said in str(raised.value)


def test_no_side_stream_is_refused():
    with pytest.raises(ValueError, match="side_streams: 0 is not allowed; give a whole number ≥ 1"):
        SideStreams(MarkedDevice(VirtualDevice(), Marks()), 0)


class Layer:
    """A layer's inputs with two real compressors, between what makes its input and what attends.

    `seen` is what attention finds of queries, keys and values, and both compressed caches.
    """

    def __init__(self, device, side_streams=2):
        self.device = device
        self.main = device.stream("main")
        self.sides = SideStreams(device, side_streams)
        self.source = self._upload(
            np.random.default_rng(1).standard_normal((TOKENS, 12), np.float32), "source"
        )
        self.hidden = device.allocate((TOKENS, 12), "float32", "hidden")
        self.rows = self._upload(np.ones(TOKENS, np.int64), "rows")
        self.positions = self._upload(np.arange(TOKENS), "positions")
        table = self._upload(np.array([[0], [1]]), "table")
        self.caches = []
        core, indexer = (
            self._compressor(shape, table, name)
            for shape, name in ((CORE, "core"), (INDEXER, "indexer"))
        )
        q, kv = (device.allocate((TOKENS, 12), "float32", name) for name in ("q", "kv"))
        qkv = [
            Launch(Kernel("q", 3_000, lambda x, q: q.copy_(3 * x)), [self.hidden], [q]),
            Launch(Kernel("kv", 3_000, lambda x, kv: kv.copy_(x + 1)), [self.hidden], [kv]),
        ]
        self.inputs = LayerInputs(qkv, q, kv, core, indexer)
        found = [q, kv, *self.caches]
        shape = (TOKENS * 24 + 2 * 8 * 8,)
        self.seen = device.allocate(shape, "float32", "seen")
        self.attend = Launch(Kernel("attend", 1_000, gather), found, [self.seen])

    def _upload(self, values, name):
        source = self.device.pinned(values.shape, values.dtype.name, f"{name}_host")
        source.on_host().copy_(source.on_host().new_tensor(values))
        target = self.device.allocate(values.shape, values.dtype.name, name)
        self.device.copy_async(target, source, self.main)
        return target

    def _compressor(self, shape, table, name):
        cache = self.device.allocate((8, 8), "float32", f"{name}_cache")
        self.caches.append(cache)
        sizes = CompressorSizes(2, TOKENS, 16, 4, dtype="float32")
        one = Compressor(self.device, shape, sizes, table=table, cache=cache, name=name)
        one.load(Parameters.drawn(shape, seed=2), self.main)
        kernels = one.kernels(TOKENS, project_ns=8_000, pool_ns=5_000)
        places = {"hidden": self.hidden, "rows": self.rows, "positions": self.positions}
        return lambda stream: one.launch(kernels, stream, **places)

    def step(self, is_on):
        """Make the input, prepare, attend: all that must be in order."""
        make = Kernel("make", 20_000, lambda source, hidden: hidden.copy_(2 * source))
        self.device.launch(make, self.main, [self.source], [self.hidden])
        if is_on:
            returned = prepare_multi_stream(self.device, self.inputs, self.main, self.sides)
        else:
            returned = prepare(self.device, self.inputs, self.main)
        assert returned == (self.inputs.q, self.inputs.kv)
        self.device.launch(self.attend.kernel, self.main, self.attend.reads, self.attend.writes)

    def found(self):
        copy = self.device.pinned((TOKENS * 24 + 2 * 8 * 8,), "float32", "copy")
        self.device.copy_async(copy, self.seen, self.main)
        self.device.synchronize()
        return copy.on_host().numpy().copy()


def gather(*tensors):
    *found, seen = tensors
    place = 0
    for tensor in found:
        seen[place : place + tensor.numel()] = tensor.flatten()
        place += tensor.numel()


def layer(side_streams=2, **options):
    return Layer(MarkedDevice(VirtualDevice(Config(**options)), Marks()), side_streams)


@pytest.fixture(scope="module")
def expected():
    one = layer()
    one.step(is_on=False)
    found = one.found()
    # Three entries of each compressor, at page 1; what else there is, is padding's.
    entries = found[TOKENS * 24 :].reshape(2, 8, 8)
    assert (entries[:, 4:7] != 0).all()
    return found


@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize("max_hw_queues", [1, 2, 4])
@pytest.mark.parametrize("side_streams", [1, 2, 3, 5])
def test_on_any_number_of_streams_and_queues_results_are_those_of_one(
    expected, side_streams, max_hw_queues, is_captured
):
    one = layer(side_streams, max_hw_queues=max_hw_queues)
    if is_captured:
        with one.device.capture(one.main, "layer") as done:
            one.step(is_on=True)
        one.device.replay(done[0], one.main)
    else:
        one.step(is_on=True)
    assert np.array_equal(one.found(), expected)


def test_kernels_of_both_compressors_run_beside_the_main_path_and_that_is_quicker():
    spans = {}
    for is_on in (False, True):
        one = layer()
        one.device.synchronize()
        tally = one.device.device.tally
        one.step(is_on=False)
        one.device.synchronize()
        with one.device.capture(one.main, "layer") as done:
            one.step(is_on)
        before = tally.busy_ns
        one.device.replay(done[0], one.main)
        one.device.synchronize()
        spans[is_on] = tally.busy_ns - before
    # Kernels of 20, 3 + 3, twice 8 + 5 and 1 µs; beside each other, compressors are the longest.
    assert spans[False] == 20_000 + 6_000 + 26_000 + 1_000
    assert 20_000 + 13_000 + 1_000 <= spans[True] < 20_000 + 13_000 + 3_500 + 1_000


def test_one_side_stream_runs_its_compressors_one_after_the_other():
    one = layer(1)
    one.step(is_on=False)
    one.device.synchronize()
    before = one.device.device.tally.busy_ns
    one.step(is_on=True)
    one.device.synchronize()
    busy_ns = one.device.device.tally.busy_ns - before
    assert busy_ns == pytest.approx(20_000 + 26_000 + 1_000, abs=3_500)


@pytest.mark.parametrize("missing", ["q", "kv"])
def test_a_path_that_writes_another_buffer_than_attention_reads_is_refused(missing):
    device = MarkedDevice(VirtualDevice(), Marks())
    q, kv, stale = (device.allocate((1,), "float32", name) for name in ("q", "kv", "stale"))
    writes = {"q": q, "kv": kv} | {missing: stale}
    works = [Launch(Kernel(name, 1), [], [buffer]) for name, buffer in writes.items()]
    with pytest.raises(ValueError, match=f"nothing writes {missing}, which attention reads"):
        LayerInputs(works, q, kv)


class BrokenError(Exception):
    pass


@pytest.mark.parametrize("broken", ["core", "indexer", "qkv"])
def test_after_a_failure_side_streams_are_joined_and_a_capture_can_go_on(expected, broken):
    one = layer()

    def fail(stream):
        one.device.launch(Kernel("half done", 50_000), stream)
        raise BrokenError

    sound = one.inputs
    jobs = {"core": sound.core, "indexer": sound.indexer}
    one.inputs = (
        LayerInputs(sound.qkv, sound.q, sound.kv, **(jobs | {broken: fail}))
        if broken != "qkv"
        else sound
    )
    with one.device.capture(one.main, "layer") as done:
        with pytest.raises(BrokenError):
            if broken == "qkv":
                one.sides.beside(one.main, [sound.core, sound.indexer], lambda: fail(one.main))
            else:
                prepare_multi_stream(one.device, one.inputs, one.main, one.sides)
        one.inputs = sound
        one.step(is_on=False)
    one.device.replay(done[0], one.main)
    assert np.array_equal(one.found(), expected)


def test_a_layer_without_compressors_neither_forks_nor_joins():
    one = layer()
    one.inputs = LayerInputs(one.inputs.qkv, one.inputs.q, one.inputs.kv)
    one.step(is_on=True)
    one.device.synchronize()
    assert {stream.queue for stream in one.sides.streams} == {None}


def test_an_engine_says_the_same_tokens_with_its_compressors_on_side_streams():
    for side_streams, queues in ((1, 4), (2, 4), (2, 1), (4, 3)):
        requests = six_requests()
        device = device_of(max_hw_queues=queues)
        engine = engine_of(device, compressor_overlap=True, side_streams=side_streams)
        engine.run(requests)
        assert outputs(requests) == expected_outputs(six_requests())


def queues_in_graphs(trace):
    """Return the queues of some kernels of decode graphs; prefills are not captured."""
    launches = trace.table("calls").filter(pl.col("kind") == "graph_launch").select("call_id")
    ops = trace.table("ops").join(launches, on="call_id", how="semi")
    pairs = ops.select(pl.col("name").cast(pl.String), "queue_id").unique().rows()
    return {
        name: {queue for of, queue in pairs if of == name}
        for name in ("wq_b", "compressor_gemm", "indexer_compressor")
    }


def counts_of_ranges(trace):
    return dict(trace.table("ranges")["text"].value_counts().rows())


def test_in_an_engine_compressors_run_on_queues_of_their_own_and_each_fork_is_marked(tmp_path):
    trace = recorded(tmp_path, serve_six, compressor_overlap=True)
    queues = queues_in_graphs(trace)
    assert not queues["compressor_gemm"] & queues["wq_b"]
    assert not queues["indexer_compressor"] & (queues["wq_b"] | queues["compressor_gemm"])
    counts = counts_of_ranges(trace)
    # Graphs of 1, 2 and 4 requests; 41 layers with a compressor, 21 of them with an indexer.
    assert [counts[text] for text in ("fork", "join", "side 0", "side 1")] == [123, 123, 123, 63]
    named = [text for text in counts if text.startswith("tk1 stream") and "name=side_" in text]
    assert len(named) == 2


def test_unless_asked_for_an_engine_on_hip_has_one_stream_for_all_of_a_forward(tmp_path):
    trace = recorded(tmp_path, serve_six)
    queues = queues_in_graphs(trace)
    assert queues["compressor_gemm"] == queues["indexer_compressor"] == queues["wq_b"]
    assert "fork" not in counts_of_ranges(trace)


def test_a_graph_of_more_tokens_than_64_keeps_its_compressors_in_line(tmp_path):
    options = {"compressor_overlap": True, "max_running": 16}
    trace = recorded(tmp_path, serve_six, **options)
    # Graphs are of 1, 2, 4, 8 and 16 requests of 6 tokens each.
    assert counts_of_ranges(trace)["fork"] == 4 * 41
