"""The same records through the metric code of SGLang's serving benchmark give the same figures."""

import importlib
import random
import sys
import types
from itertools import pairwise
from pathlib import Path

import pytest
from test_client_metrics import driven, requests

from tracekit.capture.load.client_metrics import client_metrics

FOREIGN = Path(sys.prefix) / "foreign"
ABSENT = ("aiohttp", "requests", "transformers", "orjson", "tqdm", "tqdm.asyncio")


@pytest.fixture(scope="module")
def serving_benchmark():
    """SGLang's module as installed; only the packages that it imports and does not use here are made."""
    if not (FOREIGN / "sglang" / "benchmark" / "serving.py").is_file():
        pytest.skip("sglang is not installed beside the environment")
    before = dict(sys.modules)
    sys.path.insert(0, str(FOREIGN))
    try:
        for name in ABSENT:
            sys.modules.setdefault(name, _Anything(name))
        packages = ("sglang", "sglang.srt", "sglang.srt.disaggregation", "sglang.benchmark")
        for name in packages:  # Their __init__ would load the engine.
            package = types.ModuleType(name)
            package.__path__ = [str(FOREIGN / name.replace(".", "/"))]
            sys.modules[name] = package
        for name in (
            "sglang.benchmark.datasets",
            "sglang.benchmark.datasets.mooncake",
            "sglang.benchmark.utils",
            "sglang.srt.disaggregation.utils",
            "sglang.srt.utils",
            "sglang.srt.utils.network",
        ):
            sys.modules[name] = _Anything(name)
        yield importlib.import_module("sglang.benchmark.serving")
    finally:
        sys.path.remove(str(FOREIGN))
        for name in set(sys.modules) - set(before):
            del sys.modules[name]
        sys.modules.update(before)


class _Anything(types.ModuleType):
    """A module that has every name; each is a class, since type hints name them."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Words:
    """Counts tokens; only figures of retokenized text use it, and none of them is compared."""

    def encode(self, text, add_special_tokens):
        return text.split()


def drawn(seed):
    """Requests as both sides take them: our rows in ms, their outputs in seconds."""
    draw = random.Random(seed)
    rows = []
    for _ in range(40):
        sent = draw.randint(0, 500)
        chunks, at, tokens = [], sent + draw.randint(20, 90), []
        for _ in range(draw.randint(1, 12)):
            chunks.append(at)
            tokens.append(draw.randint(1, 4))
            at += draw.randint(5, 40)
        rows.append(
            (0, "ok", sent, sent, chunks, chunks[-1] + draw.choice([0, 1]), tokens, sum(tokens))
        )
    rows.append((0, "failed", 3, 3, [], 30, [], None))
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_the_figures_are_those_of_the_serving_benchmark(serving_benchmark, seed):
    rows = drawn(seed)
    outputs = []
    for _, status, _, sent, chunks, end, _, output_tokens in rows:
        output = serving_benchmark.RequestFuncOutput()
        output.success = status == "ok"
        if output.success:
            output.start_time = sent / 1e3
            output.latency = (end - sent) / 1e3
            output.ttft = (chunks[0] - sent) / 1e3
            output.itl = [(b - a) / 1e3 for a, b in pairwise(chunks)]
            output.output_len = output_tokens
        outputs.append(output)
    duration_s = (max(row[5] for row in rows) - min(row[3] for row in rows)) / 1e3
    theirs, _ = serving_benchmark.calculate_metrics(None, outputs, duration_s, Words(), "vllm")
    ours = client_metrics(driven(requests(*rows)))
    assert (ours["completed"], ours["output_tokens"]) == (theirs.completed, theirs.total_output)
    pairs = {
        "requests_per_s": theirs.request_throughput,
        "output_tokens_per_s": theirs.output_throughput,
        "concurrency": theirs.concurrency,
    }
    for name in ("ttft", "itl", "tpot"):
        pairs |= {f"{name}_mean_ns": getattr(theirs, f"mean_{name}_ms") * 1e6}
        pairs |= {f"{name}_p50_ns": getattr(theirs, f"median_{name}_ms") * 1e6}
        pairs |= {f"{name}_p90_ns": getattr(theirs, f"p90_{name}_ms") * 1e6}
        pairs |= {f"{name}_p99_ns": getattr(theirs, f"p99_{name}_ms") * 1e6}
    pairs |= {"itl_max_ns": theirs.max_itl_ms * 1e6}
    pairs |= {"e2e_mean_ns": theirs.mean_e2e_latency_ms * 1e6}
    pairs |= {"e2e_p90_ns": theirs.p90_e2e_latency_ms * 1e6}
    assert {name: ours[name] for name in pairs} == pytest.approx(pairs, rel=1e-9)
