"""The record of a capture: complete, classed, and true of the machine it is from."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
from sse_server import serving

from tracekit.capture.load.file import Load
from tracekit.capture.machine import git_state, gpus, host
from tracekit.capture.redaction import Redactor
from tracekit.capture.versions import versions
from tracekit.capture.what_ran import (
    probe_result,
    take_reports,
    take_server,
    what_ran,
    write_what_ran,
)
from tracekit.errors import BadInput
from tracekit.manifest import allowed_environment
from tracekit.manifest.what_ran import CLASSES, FieldClass, Gpu, WhatRan, differences, read_what_ran


def test_every_field_has_a_class():
    assert set(CLASSES) == set(WhatRan.__struct_fields__)
    assert set(CLASSES.values()) == set(FieldClass)


def record(**fields):
    given = {"run_id": "a", "tracekit": "1", "start_ns": 1, "folder": "/w", "command": ["serve"]}
    return WhatRan(**(given | fields))


def test_two_runs_differ_by_class():
    base = record(host=host(), load={"requests": 8})
    head = record(
        run_id="b", command=["serve", "--fix"], gpus=[Gpu("MI300X")], load={"requests": 8}
    )
    found = differences(base, head)
    assert found == {
        FieldClass.IDENTITY: ["command"],
        FieldClass.DIFFERS: ["run_id"],
        FieldClass.MUST_MATCH: ["host", "gpus"],
    }
    virtual = [msgspec.structs.replace(run, clock="virtual", gpus=[]) for run in (base, head)]
    assert differences(*virtual)[FieldClass.MUST_MATCH] == []


def test_a_record_is_written_whole_and_read_back(tmp_path):
    path = tmp_path / "capture.json"
    before = what_ran(
        ["serve", "--port", "3"], {"GPU_MAX_HW_QUEUES": "2", "HOME": "/h"}, load=Load()
    )
    write_what_ran(before, path, Redactor())
    after = read_what_ran(path)
    assert after == before
    assert after.environment == {"GPU_MAX_HW_QUEUES": "2"}
    assert (after.outcome, after.host.node) == ("running", os.uname().nodename)
    assert after.load["prompt_tokens"] == 128
    assert [entry.name for entry in tmp_path.iterdir()] == ["capture.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run_id": 3}'])
def test_a_file_that_is_no_record_is_refused(tmp_path, text):
    path = tmp_path / "capture.json"
    path.write_text(text)
    with pytest.raises(BadInput, match="no record"):
        read_what_ran(path)
    with pytest.raises(BadInput, match="cannot be read"):
        read_what_ran(tmp_path / "none.json")


def test_versions_are_those_of_the_interpreter_that_the_command_starts(tmp_path):
    expected = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "tracekit": version("tracekit-rocm"),
        "torch": version("torch"),
    }
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    script = tmp_path / "serve"
    script.write_text(f"#!{sys.executable}\nprint()\n")
    script.chmod(0o755)
    for command in (
        ["python", "-m", "x"],
        [sys.executable],
        ["env", "A=b", "python"],
        [str(script)],
    ):
        found = versions(command, environment)
        assert expected.items() <= found.items(), command
    assert "sglang" not in found
    # A foreign server's packages are found where its PYTHONPATH says.
    package = tmp_path / "lib" / "sglang-0.5.23.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
    there = environment | {"PYTHONPATH": str(tmp_path / "lib")}
    assert versions(["python"], there)["sglang"] == "0.5.23"
    for command in (["sh", "-c", "x"], ["no-such-program"], [], ["A=b"]):
        assert versions(command, environment) == {}


def test_an_error_in_json_is_nothing_that_a_server_says_of_itself():
    what = record()
    with serving(None, server_info=(404, {"detail": "Not Found"})) as server:
        take_server(what, server.url, {})
    assert (what.server, what.clock) == ({}, None)


def test_gpus_are_what_the_drivers_list(tmp_path):
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    described = {
        "0": ("", "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\n"),
        "2": ("aqua\n", "simd_count 304\ngfx_target_version 90402\ndevice_id 29857\n"),
        "10": ("", "simd_count 256\ngfx_target_version 90010\ndevice_id 29704\n"),
    }
    for node, (name, properties) in described.items():
        (nodes / node).mkdir(parents=True)
        (nodes / node / "name").write_text(name)
        (nodes / node / "properties").write_text(properties)
    card = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t 1\n")
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
    )
    assert gpus(tmp_path) == [
        Gpu("aqua", "gfx942", "kfd topology"),
        Gpu("AMD device 0x7408", "gfx90a", "kfd topology"),
        Gpu("NVIDIA H200", None, "nvidia driver"),
    ]
    assert host(tmp_path).gpu_driver == "nvidia 570.86.15"
    assert gpus(tmp_path / "none") == []


def test_the_state_of_the_repository(tmp_path):
    assert git_state(tmp_path) is None
    quiet = {"check": True, "capture_output": True, "text": True, "cwd": tmp_path}
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", "-b", "trunk"], **quiet)
    (tmp_path / "a").write_text("1")
    assert (git_state(tmp_path).commit, git_state(tmp_path).is_dirty) == (None, True)
    subprocess.run(["git", "add", "a"], **quiet)
    subprocess.run(["git", *identity, "commit", "-q", "-m", "a"], **quiet)
    head = subprocess.run(["git", "rev-parse", "HEAD"], **quiet).stdout.strip()
    state = git_state(tmp_path)
    assert (state.commit, state.branch, state.is_dirty) == (head, "trunk", False)
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path).is_dirty


def test_what_a_virtual_server_says_replaces_the_gpus_of_the_machine():
    run = record(gpus=[Gpu("real")])
    info = {"clock": "virtual", "device": "MI300X", "now_ns": 5, "num_verifies": 3, "model": "m"}
    with serving(None, server_info=info) as server:
        take_server(run, server.url, {})
    assert run.server == {"clock": "virtual", "device": "MI300X", "model": "m"}
    assert (run.clock, run.gpus) == ("virtual", [Gpu("MI300X", None, "the server: a model")])
    take_server(untouched := record(), server.url, {})
    assert untouched == record()


def test_reports_from_inside_tell_versions(tmp_path):
    run = record(versions={"python": "3.11.7", "sglang": "0.5.0"}, versions_from="interpreter")
    report = b'{"pid": 7, "python": "3.12.1 (main)", "versions": {"torch": "2.9"}, "hooks": {}}'
    (tmp_path / "7.json").write_bytes(report)
    (tmp_path / "8.json").write_bytes(b"{half")
    take_reports(run, tmp_path)
    assert list(run.reports) == ["7"]
    assert run.versions == {"python": "3.12.1", "sglang": "0.5.0", "torch": "2.9"}
    assert "inside" in run.versions_from


def test_the_probe_is_taken_from_its_file(tmp_path):
    path = tmp_path / "probe.json"
    path.write_text('{"launch_ns": 5}')
    assert probe_result(path) == {"launch_ns": 5}
    path.write_text("[]")
    with pytest.raises(BadInput, match="no result of the probe"):
        probe_result(path)


def test_every_listed_variable_of_the_runtime_is_kept():
    # As facts about queues, waits, graphs and logs of HIP list them.
    names = """
    GPU_MAX_HW_QUEUES AMD_SERIALIZE_KERNEL AMD_SERIALIZE_COPY HIP_LAUNCH_BLOCKING
    ROC_ACTIVE_WAIT_TIMEOUT ROC_SYSTEM_SCOPE_SIGNAL ROC_CPU_WAIT_FOR_SIGNAL ROC_SIGNAL_POOL_SIZE
    ROC_AQL_QUEUE_SIZE HIP_MAX_SIGNAL_WAIT DEBUG_CLR_DISABLE_ORDERING_EDGE HIP_GRAPH_DEVICE_SIGNALS
    DEBUG_CLR_AQL_DEV_QUEUE DEBUG_HIP_DYNAMIC_QUEUES DEBUG_HIP_IGNORE_STREAM_PRIORITY
    DEBUG_HIP_FORCE_GRAPH_QUEUES DEBUG_HIP_GRAPH_SEGMENT_SCHEDULING DEBUG_HIP_GRAPH_BATCH_SIZE
    DEBUG_CLR_GRAPH_PACKET_CAPTURE DEBUG_CLR_BATCH_CPU_SYNC_SIZE DEBUG_CLR_MAX_BATCH_SIZE
    DEBUG_HIP_BLOCK_SYNC HIP_FORCE_DEV_KERNARG GPU_STREAMOPS_CP_WAIT AMD_DIRECT_DISPATCH
    GPU_FORCE_QUEUE_PROFILING ROCPROFILER_QUEUE_INTERPOSITION AMD_LOG_LEVEL AMD_LOG_MASK
    AMD_LOG_LEVEL_FILE
    """.split()
    assert set(allowed_environment(dict.fromkeys(names, "1"))) == set(names)
    refused = {"VLLM_API_KEY": "abc", "SGLANG_X": "hf_abcdefghijkl", "PATH": "/bin"}
    assert allowed_environment(refused | {"VLLM_USE_V1": "1"}) == {"VLLM_USE_V1": "1"}
