"""What a request takes of what steps yield, and what it refuses; and that no tensor is needed."""

import subprocess
import sys

import pytest

from instrumented_runtime.request import Request


@pytest.mark.parametrize(
    ("taken", "output", "reason", "first_token_ns", "finished_ns"),
    [
        # Steps end at 10, 20, … ns.
        ([], [], None, None, None),
        ([[]], [], None, None, None),
        ([[], [5]], [5], None, 20, None),
        ([[5], [6, 7]], [5, 6, 7], None, 10, None),
        ([[5], [6, 7, 8]], [5, 6, 7, 8], "length", 10, 20),
        ([[5], [6, 7, 8, 4]], [5, 6, 7, 8], "length", 10, 20),
        ([[5], [9]], [5, 9], "stop", 10, 20),
        ([[0, 5, 6]], [0], "stop", 10, 10),
        ([[5], [6, 9, 0, 8]], [5, 6, 9], "stop", 10, 20),
        ([[5, 6, 7], [9]], [5, 6, 7, 9], "stop", 10, 20),
        ([[5, 6, 7], [8], [5]], [5, 6, 7, 8], "length", 10, 20),
        ([[9], [5, 6]], [9], "stop", 10, 10),
    ],
)
def test_output_is_cut_at_the_first_stop_token_or_the_length_and_stamped_once(
    taken, output, reason, first_token_ns, finished_ns
):
    request = Request(1, (1, 2), 4, stop_tokens=frozenset({9, 0}))
    for step, tokens in enumerate(taken, 1):
        request.take(tokens, 10 * step)
    assert request.output == output
    assert (request.finish_reason, request.is_finished) == (reason, reason is not None)
    assert (request.first_token_ns, request.finished_ns) == (first_token_ns, finished_ns)


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens", "said"),
    [
        ((), 1, "prompt: is not allowed; give a tuple of at least one whole number"),
        ([1], 1, "prompt: is not allowed"),
        ((1, 2.5), 1, "prompt: is not allowed"),
        ((True,), 1, "prompt: is not allowed"),
        ((1,), 0, "max_new_tokens: 0 is not allowed; give a whole number ≥ 1"),
        ((1,), 2.0, "max_new_tokens: 2.0 is not allowed"),
        ((1,), None, "max_new_tokens: None is not allowed"),
        ((1,), -3, "max_new_tokens: -3 is not allowed"),
    ],
)
def test_a_request_that_no_forward_can_answer_is_refused(prompt, max_new_tokens, said):
    with pytest.raises(ValueError, match=said):
        Request(1, prompt, max_new_tokens)


@pytest.mark.parametrize("stop_tokens", [None, 3, "3", (3,), frozenset({"3"})])
def test_stop_tokens_of_another_kind_are_refused(stop_tokens):
    with pytest.raises(ValueError, match="stop_tokens: is not allowed; give a frozenset of whole"):
        Request(1, (1,), 1, stop_tokens)


def test_requests_that_ask_the_same_are_two():
    assert Request(1, (1,), 1) != Request(1, (1,), 1)


@pytest.mark.parametrize(
    "module",
    [
        "request",
        "pages",
        "scheduling.min_free_slots_delayer",
        "scheduling.scheduler",
    ],
)
def test_what_the_host_decides_with_is_imported_without_torch_and_numpy(module):
    program = (
        f"import sys, instrumented_runtime.{module}\n"
        "sys.exit(' '.join({'torch', 'numpy'} & sys.modules.keys()) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
