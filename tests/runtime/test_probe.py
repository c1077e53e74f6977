"""The probe finds the constants that a virtual device was given, and says what they mean.

Constants come from the configurations below; what is no constant was worked out by hand from the
rules in docs/virtual.md.
"""

import json
import re
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.devices.virtual.config import Timing
from instrumented_runtime.probe import (
    blocking_copies,
    concurrency,
    copy_rates,
    forks,
    launches,
    pending_waits,
)
from instrumented_runtime.probe.medians import is_above, median_ranks, summary

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "probe.md").read_text()
DEFAULT = Config(tensors=False)
# Slower than the default in all, with fewer queues than a graph's branches and streams want.
SLOW = Config(
    tensors=False,
    rocm="10",
    max_hw_queues=3,
    timing=Timing(
        graph_dispatch_ns=812,
        pending_wait_dispatch_ns=2_650,
        dispatch_ns=1_530,
        wait_release_ns=700,
        wake_up_ns=9_000,
        copy_bytes_per_ns=55.5,
        staging_bytes_per_ns=6.3,
        call_ns=450,
        calls_ns={"hipLaunchKernel": 3_100, "hipGraphLaunch": 21_000},
    ),
)
# Waits cost a little, and launches less than kernels.
QUICK = Config(
    tensors=False,
    max_hw_queues=7,
    timing=Timing(
        graph_dispatch_ns=310,
        pending_wait_dispatch_ns=42,
        dispatch_ns=620,
        wait_release_ns=1_500,
        copy_bytes_per_ns=24.0,
        staging_bytes_per_ns=300.0,
        call_ns=300,
        calls_ns={"hipLaunchKernel": 1_100, "hipGraphLaunch": 5_000},
    ),
)
EDGES = Config(tensors=False, rocm="10", max_hw_queues=8, ordering_edges=True)
CONFIGS = {"default": DEFAULT, "slow": SLOW, "quick": QUICK, "edges": EDGES}
# A kernel of the probe.
KERNEL_NS = 1_200


def found(probe, config, repetitions=6):
    return probe.PROBE.run(VirtualDevice(config), repetitions)


def every(*expected):
    """Parametrise by configuration and what is expected of it."""
    pairs = list(zip(CONFIGS.values(), expected, strict=True))
    return pytest.mark.parametrize(("config", "expected"), pairs, ids=list(CONFIGS))


def within_2_percent(expected):
    return pytest.approx(expected, rel=0.02)


@every((466, 1_344), (812, 2_650), (310, 42), (466, 0))
def test_dispatch_in_a_graph_and_what_a_pending_wait_adds_are_found(config, expected):
    dispatch_ns, added_ns = expected
    findings = found(pending_waits, config)
    assert findings["graph_dispatch_ns"].median == within_2_percent(dispatch_ns)
    assert findings["pending_wait_dispatch_ns"].median == within_2_percent(added_ns)
    ratio = 1 + added_ns / (dispatch_ns + KERNEL_NS)
    assert findings["pending_wait_ratio"].median == within_2_percent(ratio)


# 3010/1666 = 1.81, 4662/2012 = 2.32, 1552/1510 = 1.03 and 1.
@every(("yes", "1.81×"), ("yes", "2.32×"), ("no", "1.03×"), ("no", "1.00×"))
def test_whether_the_workaround_can_go_depends_on_what_a_pending_wait_adds(config, expected):
    (verdict,) = found(pending_waits, config).verdicts
    answer, ratio = expected
    assert verdict.answer == answer
    assert verdict.evidence.startswith(ratio)
    assert verdict.evidence.endswith("n = 6")
    assert ("the host-sync workaround can go" in verdict.meaning) == (answer == "no")


@pytest.mark.parametrize("options", [{"max_hw_queues": 1}, {"launch_blocking": True}])
def test_nothing_is_said_of_pending_waits_where_none_can_be_pending(options):
    (verdict,) = found(pending_waits, Config(tensors=False, **options)).verdicts
    assert verdict.answer == "undecided"
    assert "no other stream ran beside the graph's" in verdict.meaning


def fork_join_ns(timing, pending_ns):
    """Work out what a fork and join add to two kernels in a row.

    The side stream is always there first and waits for the fork, so both kernels of the main stream
    are dispatched with a wait pending: 2 (dispatch + pending − graph dispatch) more than in a run.
    The side kernel starts a release after the first kernel's end, without a wait pending. Where it
    ends later than the second one, which is where the release takes longer than what a pending wait
    adds, the main stream waits for the rest and for its own release instead. (With a release longer
    than a dispatch and a kernel, that wait would be pending when the side kernel is dispatched.)
    """
    main_ns = 2 * (timing.dispatch_ns + pending_ns - timing.graph_dispatch_ns)
    late_ns = timing.wait_release_ns - pending_ns
    return main_ns + (late_ns + timing.wait_release_ns if late_ns > 0 else 0)


# 2 (900 + 1344 − 466), 2 (1530 + 2650 − 812), 2 (620 + 42 − 310) + 2 · 1500 − 42 and
# 2 (900 − 466) + 2 · 1000.
@every(3_556, 6_736, 3_662, 2_868)
def test_a_fork_and_join_costs_dispatches_pending_waits_and_releases(config, expected):
    pending_ns = 0 if config.ordering_edges else config.timing.pending_wait_dispatch_ns
    assert fork_join_ns(config.timing, pending_ns) == expected
    findings = found(forks, config)
    assert findings["fork_join_ns"].median == expected
    assert f"hides more than {expected / 1_000:.2f} µs" in findings.verdicts[0].meaning


def test_branches_that_share_a_queue_are_said_to_hide_nothing():
    (verdict,) = found(forks, Config(tensors=False, max_hw_queues=1)).verdicts
    assert "one after the other" in verdict.meaning


@every(4, 3, 7, 8)
def test_as_many_streams_run_at_once_as_there_are_hardware_queues(config, expected):
    findings = found(concurrency, config)
    assert findings["streams_at_once"].median == expected
    assert findings["beyond_ratio"].median == within_2_percent(2)
    assert [verdict.answer for verdict in findings.verdicts] == ["yes"]


@pytest.mark.parametrize(("queues", "expected", "answer"), [(1, 1, "yes"), (64, 64, "no")])
def test_the_ends_of_what_is_tried_are_found_too(queues, expected, answer):
    findings = found(concurrency, Config(tensors=False, max_hw_queues=queues))
    assert findings["streams_at_once"].median == expected
    assert [verdict.answer for verdict in findings.verdicts] == [answer]


# Of eight streams those wait that share the null stream's queue: streams and null stream take turns
# at four queues or seven, and on ROCm 10 the null stream has one of its own.
@every((8 * 6 - 2 * 6, "6 of 8"), (48, "8 of 8"), (8 * 6 - 6, "7 of 8"), (48, "8 of 8"))
def test_blocking_copies_overtake_non_blocking_streams_that_share_no_queue(config, expected):
    early, streams = expected
    non_blocking, blocking = found(blocking_copies, config).verdicts
    assert (non_blocking.answer, blocking.answer) == ("yes", "no")
    assert non_blocking.evidence.startswith(f"{early} of 48 copies returned")
    assert f"on {streams} streams" in non_blocking.evidence
    assert ("is an accident" in non_blocking.meaning) == (config.rocm == "7.2")
    assert blocking.evidence.startswith("0 of 48 copies returned")


@pytest.mark.parametrize("options", [{"max_hw_queues": 1}, {"serialize_copy": 1}])
def test_a_mask_that_holds_copies_is_no_promise(options):
    non_blocking, _ = found(blocking_copies, Config(tensors=False, **options)).verdicts
    assert non_blocking.answer == "no"
    assert "nothing promises that" in non_blocking.meaning


def test_nothing_is_said_of_copies_when_no_kernel_runs_beside_them():
    findings = found(blocking_copies, Config(tensors=False, launch_blocking=True))
    assert [verdict.answer for verdict in findings.verdicts] == ["undecided", "undecided"]
    assert findings["nonblocking_pinned_copy_ns"].median is None


# What a copy takes that overtakes: 3000 ns in all until it is in its queue, dispatch, 2000 ns and
# 4096 bytes on the device, wake-up. What waits takes the delay of 4 ms, less what went before.
@every(
    700 + 3_000 + 900 + 2_000 + 102 + 5_000,
    450 + 3_000 + 1_530 + 2_000 + 74 + 9_000,
    300 + 3_000 + 620 + 2_000 + 171 + 5_000,
    700 + 3_000 + 900 + 2_000 + 102 + 5_000,
)
def test_what_a_blocking_copy_takes_is_found(config, expected):
    findings = found(blocking_copies, config)
    assert findings["idle_copy_ns"].median == within_2_percent(expected)
    assert findings["nonblocking_pinned_copy_ns"].median == within_2_percent(expected)
    assert findings["blocking_pinned_copy_ns"].median == within_2_percent(4_000_000)
    assert findings["blocking_pageable_copy_ns"].median == within_2_percent(4_000_000)


# From pageable memory the host moves the bytes first: 1 / (1 / 40 + 1 / 10) and so on.
@every((40, 10, 8), (55.5, 6.3, 5.658), (24, 300, 22.22), (40, 10, 8))
def test_copy_rates_are_found(config, expected):
    pinned, staging, pageable = expected
    findings = found(copy_rates, config)
    for name in ("h2d_pinned", "d2h_pinned", "d2h_pageable"):
        assert findings[f"{name}_bytes_per_ns"].median == within_2_percent(pinned)
    assert findings["staging_bytes_per_ns"].median == within_2_percent(staging)
    assert findings["h2d_pageable_bytes_per_ns"].median == within_2_percent(pageable)
    # 1.08 times as long is not much for what needs no pinning.
    (verdict,) = findings.verdicts
    assert verdict.answer == ("no" if config is QUICK else "yes")


@every((2_500, 12_000, 700, 900), (3_100, 21_000, 450, 1_530), (1_100, 5_000, 300, 620), None)
def test_host_launch_costs_and_the_dispatch_of_a_stream_are_found(config, expected):
    launch_ns, graph_ns, call_ns, dispatch_ns = expected or (2_500, 12_000, 700, 900)
    findings = found(launches, config)
    assert findings["launch_ns"].median == within_2_percent(launch_ns)
    assert findings["graph_launch_ns"].median == within_2_percent(graph_ns)
    assert findings["call_ns"].median == within_2_percent(call_ns)
    assert findings["dispatch_ns"].median == within_2_percent(dispatch_ns)
    (verdict,) = findings.verdicts
    assert verdict.answer == ("yes" if launch_ns > dispatch_ns + KERNEL_NS else "no")


def test_launches_that_never_get_ahead_are_undecided():
    findings = found(launches, Config(tensors=False, launch_blocking=True))
    assert findings["dispatch_ns"].n == 0
    assert [verdict.answer for verdict in findings.verdicts] == ["undecided"]


def test_kernels_that_vary_give_an_interval_that_holds_the_truth():
    config = Config(tensors=False, kernel_jitter=0.5, seed=3)
    figure = found(pending_waits, config, repetitions=25)["graph_dispatch_ns"]
    assert figure.low < figure.median < figure.high
    # Of 512 kernels that spread evenly over ± 600 ns, the mean of a difference is some 26 ns off.
    assert figure.low - 30 < 466 < figure.high + 30


@pytest.mark.parametrize("n", range(1, 15))
def test_the_ranks_are_the_innermost_that_hold_the_median_often_enough(n):
    # Each sample lies below the median or above it, with equal chance: all 2^n ways.
    below = [sum(way) for way in product((0, 1), repeat=n)]
    often = {rank: sum(rank <= count <= n - rank for count in below) / 2**n for rank in range(1, n)}
    enough = [rank for rank, share in often.items() if share >= 0.95]
    expected = (max(enough), n + 1 - max(enough)) if enough else None
    assert median_ranks(n) == expected


# From published tables of these ranks at 95 %.
@pytest.mark.parametrize(
    ("n", "ranks"), [(5, None), (6, (1, 6)), (9, (2, 8)), (20, (6, 15)), (25, (8, 18))]
)
def test_the_ranks_are_those_of_published_tables(n, ranks):
    assert median_ranks(n) == ranks


def test_a_summary_drops_what_was_not_valid_and_few_samples_decide_nothing():
    figure = summary("x_ns", "x", "ns", [5.0, float("nan"), 1.0, 3.0, 2.0, 4.0, 6.0])
    assert (figure.median, figure.low, figure.high, figure.n) == (3.5, 1.0, 6.0, 6)
    assert [is_above(figure, limit) for limit in (0.5, 1, 6, 6.5)] == [
        "yes",
        "undecided",
        "undecided",
        "no",
    ]
    few = summary("x_ns", "x", "ns", [5.0, 6.0])
    assert (few.median, few.low, few.high, is_above(few, 1)) == (5.5, None, None, "undecided")


def run(*arguments, cwd):
    command = [sys.executable, "-m", "instrumented_runtime.probe", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_page_shows_what_the_command_prints_and_declares_what_it_writes(tmp_path):
    done = run("--device", "virtual", "--json", "probe.json", cwd=tmp_path)
    assert done.returncode == 0
    (shown,) = re.findall(r"```console\n\$ [^\n]*\n(.*?)```", PAGE, re.DOTALL)
    assert done.stdout == shown
    assert "forks: 25 repetitions" in done.stderr
    assert "Wrote probe.json" in done.stderr
    content = json.loads((tmp_path / "probe.json").read_text())
    assert content["schema"] == "instrumented_runtime.probe/1"
    assert content["device"]["is_model"] is True
    assert keys_of(content) == set(re.findall(r"^\| `([\w.\[\]]+)` \|", PAGE, re.MULTILINE))
    names = [figure["name"] for probe in content["probes"] for figure in probe["figures"]]
    assert len(set(names)) == len(names) == 29


def keys_of(content, prefix=""):
    """Return the path of every value; what a mapping of free names holds is one."""
    if isinstance(content, dict) and not prefix.endswith(("versions.", "environment.")):
        return {
            path for key, value in content.items() for path in keys_of(value, f"{prefix}{key}.")
        }
    if isinstance(content, list):
        return {path for value in content for path in keys_of(value, f"{prefix[:-1]}[].")}
    return {prefix[:-1]}


def test_it_does_not_overwrite(tmp_path):
    (tmp_path / "probe.json").write_text("mine")
    done = run("--json", "probe.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "probe.json: exists and is not overwritten; move it first" in done.stderr
    assert (tmp_path / "probe.json").read_text() == "mine"


def test_a_folder_that_is_not_there_is_said_before_anything_is_run(tmp_path):
    done = run("--json", "no/probe.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "no: no folder that can be written to; make it first" in done.stderr
    assert "repetitions" not in done.stderr


def test_the_environment_of_hip_is_modelled_and_said(tmp_path, monkeypatch):
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", "2")
    monkeypatch.setenv("PROBE_SECRET", "hunter2")
    done = run("--json", "probe.json", cwd=tmp_path)
    assert "GPU_MAX_HW_QUEUES=2" in done.stdout
    assert "2 at once; one more makes it 2.00×" in done.stdout
    text = (tmp_path / "probe.json").read_text()
    assert json.loads(text)["device"]["environment"] == {"GPU_MAX_HW_QUEUES": "2"}
    assert "hunter2" not in text
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", "none")
    done = run(cwd=tmp_path)
    assert done.returncode == 2
    assert "GPU_MAX_HW_QUEUES: 'none' is not allowed" in done.stderr


def test_no_gpu_is_said_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
    done = run("--device", "torch", cwd=tmp_path)
    assert done.returncode == 2
    assert re.search(r"torch .*: use a CUDA or ROCm build", " ".join(done.stderr.split()))
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("writes", [True, False])
def test_a_closed_pipe_does_not_cost_the_file(tmp_path, writes):
    file = "--json probe.json" if writes else ""
    command = f"{sys.executable} -m instrumented_runtime.probe {file}"
    shell = ["bash", "-c", f"set -o pipefail; {command} | true"]
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert ("launches: " in done.stderr) == writes
    if writes:
        assert len(json.loads((tmp_path / "probe.json").read_text())["probes"]) == 6


def test_an_interrupt_ends_it_quietly(tmp_path):
    command = [sys.executable, "-m", "instrumented_runtime.probe", "--json", "probe.json"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        first = child.stderr.readline()
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read()
    assert first == "pending-waits: 25 repetitions\n"
    assert child.returncode == 130
    assert "Traceback" not in rest
    assert not (tmp_path / "probe.json").exists()


def test_a_full_disk_leaves_no_file_and_is_said(tmp_path):
    file = tmp_path / "probe.json"
    # No file of the process may be larger than 1 KiB: as a full disk, it fails within the write.
    python = f"import resource, signal, sys; from instrumented_runtime.console import write_new;\
 signal.signal(signal.SIGXFSZ, signal.SIG_IGN);\
 resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024));\
 from pathlib import Path; sys.exit(0 if write_new(Path({str(file)!r}), 'x' * 100_000) else 2)"
    done = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert f"{file}: cannot be written" in done.stderr
    assert not file.exists()


def test_an_output_that_cannot_be_written_is_said():
    command = [sys.executable, "-m", "instrumented_runtime.probe"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "the output cannot be written (No space left on device)\n"
