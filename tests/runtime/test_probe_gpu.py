"""The probe on a real GPU: what holds on each that promises what CUDA and HIP promise."""

import json
import subprocess
import sys

import pytest
from real_gpu import gpu


@gpu
def test_a_gpu_is_probed_and_orders_copies_with_blocking_streams_only(tmp_path):
    command = [sys.executable, "-m", "instrumented_runtime.probe", "--device", "torch"]
    command += ["--json", str(tmp_path / "probe.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "A model" not in done.stdout
    content = json.loads((tmp_path / "probe.json").read_text())
    assert content["device"]["is_model"] is False
    assert content["device"]["versions"]["torch"]
    probes = {probe["name"]: probe for probe in content["probes"]}
    figures = {figure["name"]: figure for probe in content["probes"] for figure in probe["figures"]}
    verdicts = {
        verdict["hazard"]: verdict["answer"]
        for probe in probes.values()
        for verdict in probe["verdicts"]
    }
    assert verdicts["blocking copies overtake non-blocking streams"] == "yes"
    assert verdicts["blocking copies overtake blocking streams"] == "no"
    # A kernel takes what it spins, and its dispatch some of a microsecond to some microseconds.
    assert 1_000 < figures["graph_kernel_ns"]["median"] < 20_000
    assert figures["delay_ns"]["median"] == pytest.approx(16_000_000, rel=0.1)
    assert figures["streams_at_once"]["median"] >= 2
    assert figures["h2d_pinned_bytes_per_ns"]["median"] > 1
    assert figures["launch_ns"]["median"] > 100
    assert all(figure["n"] >= 6 for figure in figures.values())
