"""What a recording of the virtual device keeps: at its end, after a kill, of its configuration."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import polars as pl
import pytest
from virtual_runs import START_NS, device_of

from instrumented_runtime.devices import Kernel
from instrumented_runtime.recorder import Recorder, RecorderError
from tracekit.formats import read_trace, silent

ENDLESS = """
import sys, time
from pathlib import Path
from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.recorder import Recorder

device = VirtualDevice(Config(tensors=False), Recorder(Path(sys.argv[1]), environment={}))
stream, kernel = device.stream(), Kernel("kernel", 1_000)
stamps = Path(sys.argv[1]) / "stamps"
launches = 0
with stamps.open("a", buffering=1) as file:
    while True:
        for _ in range(100):
            device.launch(kernel, stream)
        launches += 100
        file.write(f"{time.monotonic()} {launches}\\n")
        time.sleep(0.01)
"""


def test_a_device_that_is_never_waited_for_loses_at_most_the_last_second_to_a_kill(tmp_path):
    program = [sys.executable, "-c", ENDLESS, str(tmp_path)]
    with subprocess.Popen(program) as process:
        time.sleep(4)
        process.send_signal(signal.SIGKILL)
    killed_at = time.monotonic()
    stamps = [line.split() for line in (tmp_path / "stamps").read_text().splitlines()]
    old_enough = max(int(done) for at, done in stamps if float(at) < killed_at - 1)
    finalise = [sys.executable, "-m", "instrumented_runtime.recorder", "finalize", str(tmp_path)]
    subprocess.run(finalise, check=True, capture_output=True)
    trace = read_trace([tmp_path / "virtual_1.db"], silent)
    assert old_enough > 1_000
    assert trace.table("calls").filter(kind="launch").height >= old_enough
    # A launch takes the host 2500, its kernel 1900 and the way there 3000: two are on the way.
    assert trace.table("ops").height >= old_enough - 3


def test_what_is_queued_and_open_when_a_recording_ends_is_in_it(tmp_path):
    with Recorder(tmp_path, environment={}) as recorder:
        device = device_of(recorder)
        device.push("outer")
        device.push("inner")
        device.launch(Kernel("a", 5_000), device.null_stream)
    trace = read_trace([tmp_path / "virtual_1.db"], silent)
    assert trace.table("ops")["end_ns"].to_list() == [START_NS + 10 + 1_000 + 100 + 5_000]
    assert sorted(trace.table("ranges")["text"]) == ["inner", "outer"]
    assert device.tally.busy_ns == 5_000


def described(folder, launches=0, **options):
    with Recorder(folder, environment={}) as recorder:
        device = device_of(recorder, **options)
        for _ in range(launches):
            device.launch(Kernel("a", 5_000), device.null_stream)
    with sqlite3.connect(f"file:{folder}/virtual_1.db?mode=ro", uri=True) as connection:
        return connection.execute("SELECT guid, extdata FROM rocpd_info_process").fetchone()


def test_a_recording_says_what_was_modelled_and_is_told_apart_by_it(tmp_path):
    guid, extdata = described(tmp_path / "a", seed=7, rocm="10")
    config = json.loads(extdata)["config"]
    assert (config["seed"], config["rocm"], config["timing"]["dispatch_ns"]) == (7, "10", 100)
    assert described(tmp_path / "b", seed=7, rocm="10")[0] == guid
    assert described(tmp_path / "c", seed=8, rocm="10")[0] != guid
    assert described(tmp_path / "d", seed=7, rocm="7.2")[0] != guid
    # Files with one guid are one process to ROCm's tools, which then count everything many times.
    assert described(tmp_path / "e", launches=1, seed=7, rocm="10")[0] != guid


CONTENDED = """
import sys
from pathlib import Path
from virtual_runs import device_of
from test_virtual_time import contended_work
from instrumented_runtime.recorder import Recorder

with Recorder(Path(sys.argv[1]), environment={}) as recorder:
    device = device_of(recorder, kernel_jitter=0.3, host_costs_ns={"think": 1})
    contended_work(device, lambda event: event.query())
"""


def test_processes_with_other_hash_seeds_write_the_same_bytes(tmp_path):
    files = []
    for hash_seed in ("1", "2"):
        folder = tmp_path / hash_seed
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths}
        program = [sys.executable, "-c", CONTENDED, str(folder)]
        subprocess.run(program, check=True, env=environment)
        files.append((folder / "virtual_1.db").read_bytes())
    assert files[0] == files[1]


def work_with_data(device):
    stream, side, event = device.stream(), device.stream(flags="blocking"), device.event()
    there, here = device.allocate([64], "int64"), device.host_buffer([64], "int64")
    fill = Kernel("fill", 900, function=lambda target: target.fill_(1), sensitivity=0.4)
    with device.capture(stream) as graph:
        for _ in range(3):
            device.launch(fill, stream, writes=[there])
    for _ in range(3):
        graph.replay(stream)
        device.launch(fill, side, writes=[there])
        event.record(stream)
        event.wait(side)
        device.copy(there, here)
        device.copy_async(here, there, side)
    device.synchronize()


@pytest.mark.parametrize("rocm", ["7.2", "10"])
def test_time_is_the_same_with_tensors_and_without(tmp_path, rocm):
    found = []
    for tensors in (True, False):
        with Recorder(tmp_path / str(tensors), environment={}) as recorder:
            work_with_data(device_of(recorder, tensors=tensors, rocm=rocm))
        ops = read_trace([tmp_path / str(tensors) / "virtual_1.db"], silent).table("ops")
        found.append(ops.select(pl.col("name").cast(pl.String), "queue_id", "start_ns", "end_ns"))
    assert found[0].height == 3 * 6
    assert found[0].equals(found[1])


def test_after_its_end_a_recording_takes_nothing_and_touches_no_other_file(tmp_path):
    recorder = Recorder(tmp_path, environment={})
    device = device_of(recorder)
    device.launch(Kernel("a", 100), device.null_stream)
    path = recorder.close()
    before = path.read_bytes()
    others = [(tmp_path / f"other_{number}").open("w+") for number in range(8)]
    with pytest.raises(RuntimeError, match="the recording of this device has ended"):
        device.launch(Kernel("b", 100), device.null_stream)
    with pytest.raises(RecorderError, match="this recording has ended"):
        recorder.text("late")
    for file in others:
        assert file.read() == ""
        file.close()
    assert path.read_bytes() == before
    assert recorder.close() == path


def test_a_second_device_on_one_recorder_is_refused(tmp_path):
    with Recorder(tmp_path, environment={}) as recorder:
        device_of(recorder)
        with pytest.raises(RecorderError, match="is of another device"):
            device_of(recorder)


def test_a_close_that_failed_can_be_repeated(tmp_path):
    recorder = Recorder(tmp_path, environment={})
    device = device_of(recorder)
    device.launch(Kernel("a", 100), device.null_stream)
    taken = tmp_path / "virtual_1.db"
    taken.write_text("somebody's")
    with pytest.raises(RecorderError, match="exists"):
        recorder.close()
    taken.unlink()
    trace = read_trace([recorder.close()], silent)
    assert trace.table("ops").height == 1


def test_half_a_character_in_a_name_does_not_cost_the_recording(tmp_path):
    with Recorder(tmp_path, environment={}) as recorder:
        device = device_of(recorder)
        device.launch(Kernel("half \ud800", 100), device.null_stream)
    trace = read_trace([tmp_path / "virtual_1.db"], silent)
    assert trace.table("ops")["name"].cast(pl.String).to_list() == ["half ?"]
