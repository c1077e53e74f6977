"""A delay of prefills that lets the last requests of a burst wait for everybody else."""

import random
from collections.abc import Iterator

import numpy as np

from instrumented_runtime.bench.simulate import serve_burst
from instrumented_runtime.config import DelayRule, EngineConfig
from instrumented_runtime.costs import Costs
from instrumented_runtime.engine import Engine
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.model import VOCABULARY, HostModel, Weights
from instrumented_runtime.reproducers import Outcome, Reproducer
from instrumented_runtime.reproducers.lab import Lab
from instrumented_runtime.request import Request

# Fresh prefills are held until 3 of 16 slots are free; the last two requests find two.
REQUESTS, PROMPT_TOKENS, NEW_TOKENS = 16, 48, 40
RULES: tuple[DelayRule, ...] = ("free-slots", "free-slots-and-waiting")


def _requests() -> list[Request]:
    prompts = [
        tuple(random.Random(number).choices(range(VOCABULARY), k=PROMPT_TOKENS))
        for number in range(REQUESTS)
    ]
    return [Request(number, prompt, NEW_TOKENS) for number, prompt in enumerate(prompts)]


def _expected(config: EngineConfig) -> list[list[int]]:
    """Return what each request has to say, by the decoder on the host."""
    model, rows = HostModel(Weights.of(config.seed), REQUESTS), np.arange(REQUESTS)
    for request in _requests():
        model.start(request.request_id, request.prompt)
    said: list[list[int]] = model.next_tokens(rows, np.full(REQUESTS, NEW_TOKENS)).tolist()
    return said


def _served(device: MarkedDevice, config: EngineConfig) -> tuple[list[Request], tuple[int, int]]:
    """Serve a burst; return it, and how many run and wait when no more are admitted."""
    engine = Engine(device.device, config, marks=device.marks)
    served = _requests()
    for request in served:
        request.arrival_ns = device.device.now_ns
        engine.add(request)
    return served, serve_burst(engine)


def _run(lab: Lab) -> Iterator[Outcome]:
    for rule in RULES:
        config = EngineConfig(
            delay_rule=rule, max_running=REQUESTS, chunk_tokens=96, page_size=16, max_tokens=256
        )
        with lab.mode(rule, {"host_costs_ns": Costs().host_ns}) as device:
            served, (running, waiting) = _served(device, config)
        first_ms = sorted(((one.first_token_ns or 0) - one.arrival_ns) / 1e6 for one in served)
        free = REQUESTS - running
        problem = f"{waiting} wait beside {free} free slots" if waiting and free >= waiting else ""
        if [request.output for request in served] != _expected(config):
            problem = "requests say other tokens than the decoder on the host"
        figures = {
            "running": str(running),
            "waiting": str(waiting),
            "TTFT median, ms": f"{first_ms[len(first_ms) // 2]:,.1f}",
            "TTFT max, ms": f"{first_ms[-1]:,.1f}",
        }
        yield Outcome(rule, rule != "free-slots", problem, figures)


REPRODUCER = Reproducer(
    "stranded-requests",
    "A burst fills the slots but for a few, and the last requests wait until somebody is done.",
    lambda _lab: RULES,
    _run,
)
