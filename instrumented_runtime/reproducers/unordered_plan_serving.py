"""A server that plans the next prefill while one runs: when that faults, and what hides it."""

from collections.abc import Iterator
from dataclasses import replace

from instrumented_runtime.bench.published import SERVING, Serving
from instrumented_runtime.bench.s5 import MASKED, SOME_PROMPTS, request_stream
from instrumented_runtime.bench.serving import MASKS, Arm, Served, serve
from instrumented_runtime.reproducers import Outcome, Reproducer
from instrumented_runtime.reproducers.lab import Lab
from instrumented_runtime.reproducers.processes import in_processes

# A traced mode is shorter: each prompt is some ten thousand dispatches.
TRACED_PROMPTS = 96
ARMS = {
    "direct-rocm-7.2": Arm(),
    "direct-rocm-10": Arm(rocm="10"),
    "staged-rocm-7.2": Arm("staged"),
    "staged-rocm-10": Arm("staged", rocm="10"),
    "synced-rocm-7.2": Arm("synced"),
    "synced-rocm-10": Arm("synced", rocm="10"),
    **{f"masked-{name.replace(' ', '-')}": arm for name, arm in MASKS.items()},
}
# What was published of whole streams, all of it on ROCm 7.2.
FULL = [mode for mode in ARMS if mode.startswith(("direct-rocm-7.2", "staged-rocm-7.2", "masked-"))]


def _run(lab: Lab) -> Iterator[Outcome]:
    prompts = SOME_PROMPTS if lab.folder is None else TRACED_PROMPTS
    stream = replace(request_stream(SERVING[MASKED]), prompts=prompts)
    for mode, arm in ARMS.items():
        with lab.recording(mode, arm.environment) as recorder:
            served = serve(stream, arm, recorder=recorder)
        yield _outcome(mode, served, is_fixed=not mode.startswith("direct-"))


def _run_full() -> Iterator[Outcome]:
    """Serve whole streams: unpatched, staged, and unpatched with each mask."""
    return in_processes(_served_whole, [(known, mode) for known in SERVING for mode in FULL])


def _served_whole(case: tuple[Serving, str]) -> Outcome:
    known, mode = case
    served = serve(request_stream(known), ARMS[mode])
    stream = f"{known.concurrency}-{known.prompts}-{known.seed}"
    return _outcome(f"{stream}/{mode}", served, is_fixed=not mode.startswith("direct-"))


def _outcome(name: str, served: Served, *, is_fixed: bool) -> Outcome:
    problem = ""
    if served.finished < served.prompts:
        problem = f"{served.fault.kernel} faulted" if served.fault else "did not finish"
    is_written = served.plans > 0
    figures = {
        "done": f"{served.finished} of {served.prompts}",
        "fault at": f"{served.fault.address:#x}" if served.fault else "",
        "plans": str(served.plans),
        "under a prefill": f"{served.under_way_share:.1%}" if is_written else "",
        "returned late": f"{served.late} of {served.under_way}" if is_written else "",
        "tok/s": f"{served.tokens_per_s:,.1f}",
    }
    return Outcome(name, is_fixed, problem, figures)


REPRODUCER = Reproducer(
    "unordered-plan-serving",
    "A server plans the next prefill while one runs, and writes the plan by unordered copies.",
    lambda _lab: tuple(ARMS),
    _run,
    _run_full,
    devices=("virtual",),
)
