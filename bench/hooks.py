"""What a hook costs: a call while nothing is written, a range, and the share of an engine's cycle.

    python bench/hooks.py [--rounds 15]

A bare call, the same call under each kind of wrapper, and an empty wrapper made with wrapt where
that is installed, alternate; a figure is a median over rounds of time per call, and the cost is the
difference to the bare call of the same round. On, the markers go to each backend that is there;
`record_function` is measured while PyTorch's profiler records, on all threads, as the hook does.

A cycle has as many markers as a speculative, overlapped SGLang cycle has (the lists below), and is
as long as the shortest that was published: 8.63 ms, batch 1 of a DSpark server on 8 MI355X.
Exits 1 when a median is beyond its limit.
"""

import argparse
import os
import platform
import statistics
import sys
import timeit
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torch
from limits import Limit, exit_status

from instrumented_runtime.hooks.markers import statement
from instrumented_runtime.hooks.process import Process
from instrumented_runtime.hooks.targets import ranged
from instrumented_runtime.hooks.torch_streams import HOOK as TORCH_STREAMS
from instrumented_runtime.marks import BackendError, backend_named

IDLE_LIMIT_US = 0.3
CYCLE_LIMIT = 0.02
CYCLE_US = 8630.0
# ingest, get_next_batch, get_new_batch_prefill, update_running, prepare_for_decode, run_batch,
# resolve_seq_lens, resolve_forward_inputs, spec_extras, worker, draft, verify, run_eagle_verify,
# 3 × (forward, execute, load_batch), publish, draft_extend, relay, stash, copy_result, copy_to_cpu,
# war_barrier, process_batch_result and its decode and spec parts, launch_sample.
RANGES_A_CYCLE = 33
# publish, two stream waits of two instants each, copy_done and its wait by the host, war barrier.
INSTANTS_A_CYCLE = 9


class Engine:
    """What is wrapped: a method that does nothing, with the arguments of a real one."""

    def run_batch(self, batch: object, pp_proxy_tensors: object = None) -> None:
        """Do nothing."""


def wrapped_with_wrapt() -> type | None:
    """Return the engine under an empty wrapper of wrapt, which hooks could have used."""
    try:
        import wrapt
    except ImportError:
        return None

    @wrapt.decorator
    def empty(function: Any, _instance: object, args: Any, kwargs: Any) -> object:  # noqa: ANN401
        return function(*args, **kwargs)

    return type("Engine", (), {"run_batch": empty(Engine.run_batch)})


def classes(process: Process) -> dict[str, type]:
    """Return the engine bare and under each kind of wrapper."""
    made_of = {target.attribute: target.make for target in TORCH_STREAMS.targets}
    record = made_of["cuda.Event.record"](process, Engine.run_batch, "")
    # Takes its first argument, here the engine, for the stream that it remembers.
    set_stream = made_of["cuda.set_stream"](process, Engine.run_batch, "")
    handles = {"device_index": 0, "cuda_stream": 0x10}
    made = {
        "bare": Engine,
        "range": type("E", (), {"run_batch": ranged(process, Engine.run_batch, "run_batch")}),
        "event": type("E", (), {"run_batch": record}),
        "set_stream": type("E", (), {"run_batch": set_stream, **handles}),
    }
    wrapt_s = wrapped_with_wrapt()
    return made if wrapt_s is None else made | {"wrapt": wrapt_s}


def per_call(calls: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return µs per call by name, one per round, alternating."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, measure in calls.items():
            times[name].append(measure())
    return times


def timed(statement_text: str, names: dict[str, object], number: int) -> Callable[[], float]:
    """Return what times a statement, in µs."""
    timer = timeit.Timer(statement_text, globals=names)
    return lambda: timer.timeit(number) / number * 1e6


def shown(title: str, values: list[float]) -> float:
    """Print a median with its range; return it."""
    median = statistics.median(values)
    print(f"{title:>28}: {median:.3f} µs ({min(values):.3f} to {max(values):.3f})")
    return median


def over_bare(times: dict[str, list[float]], name: str) -> list[float]:
    """Return what a wrapper adds, round by round."""
    return [value - bare for value, bare in zip(times[name], times["bare"], strict=True)]


def idle(rounds: int) -> list[Limit]:
    """Measure calls while no window is open."""
    process = Process({})
    calls = {
        name: timed("engine.run_batch(1, None)", {"engine": kind()}, 200_000)
        for name, kind in classes(process).items()
    }
    times = per_call(calls, rounds)
    shown("bare call", times["bare"])
    added = {
        name: shown(f"{name} adds", over_bare(times, name)) for name in times if name != "bare"
    }
    return [
        Limit(f"idle, {name}", added[name], IDLE_LIMIT_US, " µs")
        for name in ("range", "event", "set_stream")
    ]


def recording(name: str) -> AbstractContextManager[object]:
    """Return the profiler that listens to a backend, where there is one to start from here."""
    if name != "record_function":
        return nullcontext()
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        experimental_config=config,
        acc_events=True,
    )


def on(name: str, backend: object, rounds: int) -> Limit:
    """Measure a range, an instant and a step as text goes to a backend."""
    process = Process({})
    process.markers._backend, process.markers._is_off = backend, False
    process.gate[0] = 1
    made = classes(process)
    names: dict[str, object] = {
        "engine": made["range"](),
        "bare": Engine(),
        "say": process.markers.say,
        "push": process.markers.push,
        "pop": process.markers.pop,
        "text": statement,
        "numbers": count(),
    }
    calls = {
        "bare": timed("bare.run_batch(1, None)", names, 5_000),
        "range": timed("engine.run_batch(1, None)", names, 5_000),
        "instant": timed("say('record', 0x66a0, stream=0x55d0)", names, 5_000),
        "step": timed(
            "push(text('step', next(numbers), kind='verify', bs=8, tokens=26)); pop()", names, 5_000
        ),
    }
    with recording(name):
        times = per_call(calls, rounds)
    medians = {
        key: shown(f"{name}, {key}", over_bare(times, key)) for key in ("range", "instant", "step")
    }
    cycle = (
        RANGES_A_CYCLE * medians["range"] + INSTANTS_A_CYCLE * medians["instant"] + medians["step"]
    )
    return Limit(f"{name}, share of a cycle", cycle / CYCLE_US, CYCLE_LIMIT)


def main() -> None:
    """Measure, print, and exit."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=15)
    rounds = arguments.parse_args().rounds
    if rounds < 3:
        arguments.error("a median needs at least 3 rounds")
    limits = idle(rounds)
    nowhere = SimpleNamespace(mark=lambda _: None, push=lambda _: None, pop=lambda: None)
    backends: dict[str, object] = {"text alone": nowhere}
    for name in ("roctx", "nvtx", "record_function"):
        try:
            backends[name] = backend_named(name)
        except BackendError as error:
            print(f"{name:>28}: {error}")
    limits += [on(name, backend, rounds) for name, backend in backends.items()]
    print(
        f"n={rounds}; {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    sys.exit(exit_status(limits))


if __name__ == "__main__":
    main()
