"""Reproducers on a real GPU: what goes wrong on each, and that what mends it is right."""

import subprocess
import sys

import pytest
from real_gpu import gpu


@gpu
@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("unordered-plan", {"direct": "the result of A is wrong"}, {"synced", "staged"}),
        ("split-k-clobber", {"keyed-by-shape": "stream 0 is wrong"}, {"keyed-by-stream"}),
    ],
)
def test_a_gpu_gets_wrong_results_and_with_the_fix_right_ones(name, wrong, right, tmp_path):
    command = [sys.executable, "-m", "instrumented_runtime.reproducers", name, "--device", "torch"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "a model of a device" not in done.stdout.lower()
    said = dict(line.split(": ", 2)[1:] for line in done.stderr.splitlines() if name in line)
    assert said == {
        **{mode: f"reproduced: {problem}" for mode, problem in wrong.items()},
        **dict.fromkeys(right, "clean"),
    }
