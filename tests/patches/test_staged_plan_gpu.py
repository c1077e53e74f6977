"""Staging on a real GPU: a queued reader keeps the plan of its own step."""

import importlib.util

import patches_here
import pytest

torch = pytest.importorskip("torch")


def _what_is_missing():
    return "" if torch.cuda.is_available() else f"torch {torch.__version__} sees no GPU"


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(_what_is_missing()), reason=_what_is_missing()),
]
DELAY_CYCLES = 200_000_000


def blocking_planner(number, *_inputs_and_outputs, **_options):
    """Write a number into outputs as AITER does: on a device by copies that no stream orders."""
    aside = torch.cuda.Stream()
    for output in _inputs_and_outputs[5:]:
        plan = torch.full(output.shape, number, dtype=output.dtype)
        with torch.cuda.stream(aside):
            output.copy_(plan)
        aside.synchronize()


def read_behind_a_delay(planner, numbers):
    """Plan number after number into the same buffers, each read by a kernel that starts late."""
    outputs = [torch.zeros(64, dtype=torch.int32, device="cuda") for _ in range(6)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    seen = []
    with torch.cuda.stream(stream):
        for number in numbers:
            planner(number, 0, 0, 0, 0, *outputs)
            torch.cuda._sleep(DELAY_CYCLES)
            seen.append(torch.stack([output[-1] for output in outputs[1:]]))
    torch.cuda.synchronize()
    return [sorted(set(numbers.tolist())) for numbers in seen]


def test_each_reader_sees_the_plan_of_its_own_step():
    patches_here.patches()
    staged_plan = importlib.import_module("_tracekit_patches.parts.staged_plan")
    planner = staged_plan.StagedPlans().staging(blocking_planner)
    assert read_behind_a_delay(planner, [1, 2, 3, 4, 5]) == [[1], [2], [3], [4], [5]]
    # The same without it: all readers come after all plans.
    assert read_behind_a_delay(blocking_planner, [1, 2, 3]) == [[3], [3], [3]]
