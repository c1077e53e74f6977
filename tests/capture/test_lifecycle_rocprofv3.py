"""A whole capture with the stand-in for rocprofv3, whose workers write only if they end well."""

from collections import Counter

import pytest
from rocm_stand_in import environment_with, install, steps_done, toy
from watching import Told

from tracekit.capture.lifecycle import capture
from tracekit.capture.readiness import Readiness
from tracekit.capture.wanted import Wanted
from tracekit.formats import read_trace

KERNELS_PER_STEP = 40


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    "words", [pytest.param((), marks=pytest.mark.slow), ("sglang.launch_server",)]
)
def test_every_worker_of_a_stopped_server_has_written_all_it_did(tmp_path, words):
    """Each in the way of its kind; finalising takes 0.6 s."""
    rocm, folder, run = install(tmp_path / "rocm"), tmp_path / "toy", tmp_path / "run"
    wanted = Wanted(
        command=(*map(str, toy(folder)), *words),
        directory=run,
        environment=environment_with(rocm, FAKE_ROCPROFV3_FINALIZE_S="0.6"),
        profiler="rocprofv3",
        hooks=(),
        readiness=Readiness(log="worker"),
        has_window=False,
        has_load=False,
        duration_s=0.5,
        gpu_devices=(str(folder / "kfd"),),
    )
    observer = Told()
    captured = capture(wanted, observer)
    assert (captured.outcome, captured.problem, observer.notes) == ("complete", None, [])
    trace = read_trace([run / "raw"])
    pids = dict(trace.table("processes").select("process_id", "pid").iter_rows())
    ops = trace.table("ops")
    kernels = Counter(
        pids[process] for process in ops.filter(ops["kind"] == "kernel")["process_id"]
    )
    done = steps_done(folder)
    assert kernels.keys() == done.keys()
    # The step that the signal came into may be cut.
    assert all(0 <= kernels[pid] - KERNELS_PER_STEP * done[pid] <= KERNELS_PER_STEP for pid in done)
