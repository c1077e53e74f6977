"""Small engines, what they are asked, and what they have to say.

What they have to say is worked out anew: whole numbers, plain loops, the whole history of a
sequence. Only the parameters are the engine's.
"""

import random
from functools import cache

import polars as pl

from instrumented_runtime.config import EngineConfig
from instrumented_runtime.devices.virtual import Config, Timing, VirtualDevice
from instrumented_runtime.engine import Engine
from instrumented_runtime.marks import Marks
from instrumented_runtime.model import Weights
from instrumented_runtime.recorder import Recorder
from instrumented_runtime.request import Request
from tracekit.formats import read_trace, silent

SMALL = {"max_running": 4, "chunk_tokens": 32, "page_size": 8, "max_tokens": 128}
HOST_NS = {
    "schedule": 60_000,
    "prepare": 1_000_000,
    "process": 40_000,
    "process_request": 1_000,
    "plan": 200_000,
}
POLICIES = ("host-sync", "event-wait", "forward-stream")
# A host that takes no time, so that it is where it must not be as early as it can.
INSTANT_HOST = {
    "host_ns": dict.fromkeys(HOST_NS, 0),
    "timing": Timing(wake_up_ns=0, call_ns=0, calls_ns={}),
}


def device_of(recorder=None, *, host_ns=HOST_NS, **options):
    return VirtualDevice(Config(host_costs_ns=host_ns, **options), recorder)


def engine_of(device=None, *, marks=None, has_overlap=True, **options):
    """Return a small engine, on a virtual device of its own if none is given."""
    config = EngineConfig(**(SMALL | options))
    if config.has_tensors:
        import torch

        # Tensors are tiny: threads would only wait for each other.
        torch.set_num_threads(1)
    device = device or device_of(tensors=config.has_tensors)
    return Engine(device, config, marks=marks, has_overlap=has_overlap)


def recorded(folder, serve, **options):
    """Return the trace of `serve(engine)` on a virtual device without tensors, markers in it."""
    with Recorder(folder, environment={"ROCPROF_KERNEL_TRACE": "1"}) as recorder:
        device = device_of(recorder, tensors=False)
        serve(engine_of(device, marks=Marks(device), has_tensors=False, **options))
        device.synchronize()
        path = recorder.close()
    return read_trace([path], silent)


def serve_six(engine):
    engine.run(six_requests())


def within(trace, text):
    """Return what the host called in each range of a text, in order: calls with `op`, by range.

    `op` is the name of what the device did for a call, of the first thing if it did several.
    """
    ops = trace.table("ops").sort("start_ns").unique("call_id", keep="first", maintain_order=True)
    calls = trace.table("calls").join(
        ops.select("call_id", op=pl.col("name").cast(pl.String)), on="call_id", how="left"
    )
    spans = trace.table("ranges").filter(text=text).sort("start_ns").rows(named=True)
    return [
        calls.filter(
            (pl.col("start_ns") >= span["start_ns"]) & (pl.col("end_ns") <= span["end_ns"])
        ).sort("start_ns")
        for span in spans
    ]


def prompt_of(length, seed=0):
    """Return a prompt; of one seed the shorter is the beginning of the longer."""
    draw = random.Random(seed)
    return tuple(draw.randrange(512) for _ in range(length))


def six_requests():
    """One token and a page and a chunk to the token; more than fit at once; one that stops early.

    Made anew for each engine, which writes into them.
    """
    lengths_and_news = ((1, 9), (8, 1), (32, 14), (45, 6), (31, 12), (70, 8))
    requests = [
        Request(number, prompt_of(length, number), new)
        for number, (length, new) in enumerate(lengths_and_news)
    ]
    stop = greedy(0, requests[2].prompt, 14)[4]
    requests.append(Request(6, requests[2].prompt, 14, stop_tokens=frozenset({stop})))
    return requests


def outputs(requests):
    return {request.request_id: request.output for request in requests}


def expected_outputs(requests, seed=0):
    """Return what the requests have to get from an engine of a seed."""
    said = {}
    for request in requests:
        tokens = list(greedy(seed, request.prompt, request.max_new_tokens))
        stops = [place for place, token in enumerate(tokens) if token in request.stop_tokens]
        said[request.request_id] = tokens[: stops[0] + 1] if stops else tokens
    return said


class PlainDecoder:
    """The decoder on whole numbers, one token after another; nothing of a sequence is forgotten."""

    def __init__(self, weights):
        def whole(array):
            assert (array == array.round()).all()
            return array.astype(int).tolist()

        self.embedding, self.attention = whole(weights.embedding), whole(weights.attention)
        self.values, self.tie = whole(weights.values), whole(weights.tie)
        self.head = whole(weights.head.T)
        self.history = [[] for _ in self.values]

    def take(self, token):
        """Go on by a token; return what the last layer makes of it."""
        hidden = self.embedding[token]
        for layer, (matrix, shares) in enumerate(zip(self.values, self.attention, strict=True)):
            value = [0] * 16
            for row, factor in enumerate(hidden):
                for column in range(16):
                    value[column] += factor * matrix[row][column]
            past = self.history[layer]
            past.append([one % 61 for one in value])
            mixed = [3 * one for one in hidden]
            for back, share in enumerate(shares):
                if back < len(past):
                    for place in range(16):
                        mixed[place] += share * past[-1 - back][place]
            hidden = [one % 61 for one in mixed]
        return hidden

    def logits(self, hidden):
        return [
            sum((one - 30) * factor for one, factor in zip(hidden, column, strict=True)) + tie
            for column, tie in zip(self.head, self.tie, strict=True)
        ]


@cache
def weights_of(seed):
    return Weights.of(seed)


@cache
def greedy(seed, prompt, count):
    """Return the `count` tokens that follow a prompt, the likeliest first of all each time."""
    decoder = PlainDecoder(weights_of(seed))
    for token in prompt:
        hidden = decoder.take(token)
    said = []
    while len(said) < count:
        logits = decoder.logits(hidden)
        said.append(logits.index(max(logits)))
        hidden = decoder.take(said[-1])
    return tuple(said)


def is_missed_plainly(seed, threshold, position):
    """Hash a position as `is_missed`, on whole numbers of any size."""
    mixed = (seed + position * 506_952_113) % 2**32
    mixed ^= mixed >> 15
    mixed = mixed * 739_982_445 % 2**32
    mixed ^= mixed >> 12
    mixed = mixed * 695_872_825 % 2**32
    mixed ^= mixed >> 15
    return mixed % 65_536 < threshold


def verified_plainly(misses, prompt_tokens, new_tokens, drafted):
    """Return what each verify of a request yields until it has its new tokens.

    The first token comes from the prefill; where a drafted token is missed, the target's own ends
    the verify.
    """
    counts, length, said = [], prompt_tokens, 1
    while said < new_tokens:
        count = 1
        while count <= drafted and not is_missed_plainly(
            misses.seed, misses.threshold, length + count
        ):
            count += 1
        counts.append(count)
        length, said = length + count, said + count
    return counts
