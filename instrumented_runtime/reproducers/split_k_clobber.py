"""Split-K scratch that two streams share: one attends with the other's partial outputs."""

from collections.abc import Iterator

from instrumented_runtime.compressor.split_k_buffer_pool import SplitKBufferPool
from instrumented_runtime.reproducers import Outcome, Reproducer
from instrumented_runtime.reproducers.lab import Lab
from instrumented_runtime.reproducers.two_stream_attention import TwoStreamAttention, by_shape

# Of float32 against float64, for values near 1.
TOLERANCE = 1e-5
MODES = ("keyed-by-shape", "keyed-by-stream")


def _run(lab: Lab) -> Iterator[Outcome]:
    for mode in MODES:
        with lab.mode(mode) as device:
            is_fixed = mode == "keyed-by-stream"
            pool = SplitKBufferPool(device) if is_fixed else SplitKBufferPool(device, by_shape)
            attention = TwoStreamAttention(device, pool)
            attention.warm_up()
            attention.queue(is_ordered=lab.kind == "torch")
            errors = attention.errors()
        wrong = [str(number) for number, error in enumerate(errors) if not error <= TOLERANCE]
        problem = f"stream {' and '.join(wrong)} is wrong" if wrong else ""
        figures = {
            f"stream {number}, largest error": f"{error:.1e}" for number, error in enumerate(errors)
        }
        yield Outcome(mode, is_fixed, problem, figures)


REPRODUCER = Reproducer(
    "split-k-clobber",
    "Two streams attend with scratch of one key; one combines what the other has written.",
    lambda _lab: MODES,
    _run,
)
