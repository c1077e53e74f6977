import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from instrumented_runtime.bench.published import Serving
from instrumented_runtime.devices import MemoryFault
from instrumented_runtime.reproducers import (
    command,
    host_sync_bubble,
    pending_wait,
    split_k_clobber,
    stranded_requests,
    unordered_plan,
    unordered_plan_serving,
)
from instrumented_runtime.reproducers.lab import Lab
from instrumented_runtime.reproducers.two_stream_attention import by_shape
from tracekit.findings import FindingSeverity
from tracekit.formats import read_trace
from tracekit.pipeline import analyse

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reproducers.md").read_text()


def outcomes(reproducer, folder=None):
    return {one.mode: one for one in reproducer.run(Lab("virtual", folder))}


def run(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, "-m", "instrumented_runtime.reproducers", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def number(text):
    return float(text.replace(",", "").replace(" ms", ""))


def test_a_pending_wait_costs_each_dispatch_what_the_published_graph_says(tmp_path):
    found = outcomes(pending_wait.REPRODUCER, tmp_path)
    assert {mode for mode, one in found.items() if one.problem} == {"with", "alternating"}
    alone = number(found["without"].figures["graph, µs"])
    waited_for = number(found["with"].figures["with a wait, µs"])
    # Published: 1541 µs instead of 853 µs.
    assert waited_for - alone == pytest.approx(1541 - 853, rel=0.01)
    trace = read_trace(sorted((tmp_path / "alternating").glob("*.db")))
    report = analyse(trace, only=["queue-waits"])
    (section,) = report.sections
    ratios = section.frame.filter(pl.col("ratio").is_not_null())["ratio"]
    assert ratios.max() == pytest.approx(1541 / 853, rel=0.01)


def test_only_a_host_that_waits_before_it_prepares_exposes_the_preparation():
    found = outcomes(host_sync_bubble.REPRODUCER)
    assert {mode for mode, one in found.items() if one.problem} == {"host-sync"}
    steps = {mode: number(one.figures["step, µs"]) for mode, one in found.items()}
    exposed_us = steps["host-sync"] - steps["in-queue"]
    assert exposed_us == pytest.approx(host_sync_bubble.PREPARE_NS / 1e3, rel=0.05)


def test_a_burst_of_16_on_16_slots_strands_two_requests_under_the_old_rule():
    # The threshold is min(4, max(2, (16 + 5) // 6)) = 3, so nobody is admitted to two free slots.
    found = outcomes(stranded_requests.REPRODUCER)
    old, new = found["free-slots"], found["free-slots-and-waiting"]
    assert (old.figures["running"], old.figures["waiting"]) == ("14", "2")
    assert (new.figures["running"], new.figures["waiting"]) == ("16", "0")
    assert (bool(old.problem), bool(new.problem)) == (True, False)


def test_scratch_by_shape_makes_the_first_stream_wrong_and_by_stream_none():
    found = outcomes(split_k_clobber.REPRODUCER)
    assert found["keyed-by-shape"].problem == "stream 0 is wrong"
    assert not found["keyed-by-stream"].problem


def test_the_plan_of_three_prefills_faults_near_null_under_the_one_that_has_no_scratch(tmp_path):
    found = {}
    for outcome in unordered_plan.run(Lab("virtual", tmp_path)):
        if not outcome.mode.startswith("direct"):
            break
        found[outcome.mode] = outcome
    assert set(found) == {"direct-rocm-7.2", "direct-rocm-10"}
    # 30 parts of 256 rows of 16 heads of 4 bytes, from address 0 on.
    addresses = [int(one.figures["fault at"], 16) for one in found.values()]
    assert all(0 <= address < 30 * 256 * 64 for address in addresses)
    for mode in found:
        (trace,) = (tmp_path / mode).glob("*.db")
        findings = analyse(read_trace([trace]), only=["unordered-copies"]).findings
        told = {(one.code, one.severity, one.evidence["buffer"]) for one in findings}
        code, critical = "unordered-copy.in-flight-reader", FindingSeverity.CRITICAL
        assert {(code, critical, f"plan_work_{part}") for part in ("indptr", "info")} <= told


def test_a_synced_and_a_staged_plan_give_what_attention_gives(tmp_path):
    lengths = (700,), (300, 100, 250)
    found = {one.mode: one for one in unordered_plan.run(Lab("virtual", tmp_path), *lengths)}
    for mode, outcome in found.items():
        if mode.startswith("direct"):
            continue
        assert not outcome.problem, outcome
        (trace,) = (tmp_path / mode).glob("*.db")
        assert not analyse(read_trace([trace]), only=["unordered-copies"]).findings


def test_a_server_faults_on_rocm_10_and_not_with_staged_plans(monkeypatch):
    arms = unordered_plan_serving.ARMS
    some = {mode: arms[mode] for mode in ("direct-rocm-10", "staged-rocm-10")}
    monkeypatch.setattr(unordered_plan_serving, "ARMS", some)
    monkeypatch.setattr(unordered_plan_serving, "SOME_PROMPTS", 96)
    found = outcomes(unordered_plan_serving.REPRODUCER)
    assert "faulted" in found["direct-rocm-10"].problem
    assert not found["staged-rocm-10"].problem
    assert found["staged-rocm-10"].figures["done"] == "96 of 96"


def test_whole_streams_are_served_in_other_processes(monkeypatch):
    monkeypatch.setattr(unordered_plan_serving, "SERVING", [Serving(4, 6, 4, faults_at=0)])
    full = unordered_plan_serving.FULL
    assert len(full) == 7
    monkeypatch.setattr(unordered_plan_serving, "FULL", [full[1], full[4]])
    found = {one.mode: one for one in unordered_plan_serving.REPRODUCER.run_full()}
    assert list(found) == [
        "4-6-4/staged-rocm-7.2",
        "4-6-4/masked-no-async-scheduling",
    ]
    assert all(one.is_fixed and one.figures["done"] == "6 of 6" for one in found.values())


@pytest.mark.parametrize(
    "reproducer",
    [
        host_sync_bubble.REPRODUCER,
        pending_wait.REPRODUCER,
        split_k_clobber.REPRODUCER,
    ],
    ids=lambda one: one.name,
)
def test_what_runs_is_what_is_announced(reproducer):
    assert reproducer.modes(Lab("virtual")) == tuple(outcomes(reproducer))


def test_a_fix_that_does_not_work_fails(monkeypatch, capsys):
    pool = split_k_clobber.SplitKBufferPool
    monkeypatch.setattr(
        split_k_clobber, "SplitKBufferPool", lambda device, _key=None: pool(device, by_shape)
    )
    monkeypatch.setattr(sys, "argv", ["reproducers", "split-k-clobber"])
    assert command.main() == 1
    assert "FIXED, AND NOT CLEAN: stream 0 is wrong" in capsys.readouterr().out


def test_one_hardware_queue_masks_the_pending_wait(tmp_path):
    done = run("pending-wait", cwd=tmp_path, GPU_MAX_HW_QUEUES="1")
    assert done.returncode == 0
    assert "clean, not seen on this device" in done.stdout
    assert "reproduced" not in done.stdout
    assert "no figure here is a measurement" in done.stdout


def test_each_mode_is_recorded_and_nothing_is_overwritten(tmp_path):
    done = run("split-k-clobber", "--trace", "traces", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for mode in ("keyed-by-shape", "keyed-by-stream"):
        (trace,) = (tmp_path / "traces" / mode).glob("*.db")
        assert not analyse(read_trace([trace]), only=["queue-busy"]).sections[0].frame.is_empty()
        assert f"Wrote {trace.relative_to(tmp_path).parent}" in done.stderr
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.db")}
    again = run("split-k-clobber", "--trace", "traces", cwd=tmp_path)
    assert again.returncode == 2
    assert "traces/keyed-by-shape: holds files and is not overwritten" in again.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.db")} == before


def without_rounding(text):
    """Return a table with errors below 1e-5, which rounding decides, all as one."""
    return re.sub(r"\d\.\de-0[6-9]", "tiny", text)


def test_the_page_shows_what_a_reproducer_prints_and_names_all(tmp_path):
    (shown,) = re.findall(r"```console\n\$ [^\n]*\n(.*?)```", PAGE, re.DOTALL)
    done = run("split-k-clobber", cwd=tmp_path)
    assert without_rounding(done.stdout) == without_rounding(shown)
    assert set(re.findall(r"^\| `([a-z-]+)` \| `", PAGE.split("## On a GPU")[0], re.MULTILINE)) == {
        *command.REPRODUCERS
    }


def test_without_torch_it_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(sys, "argv", ["reproducers", "split-k-clobber"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert "torch" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such"], "invalid choice"),
        (["pending-wait", "--device", "mi355x"], "invalid choice"),
        ([], "the following arguments are required: NAME"),
        (["unordered-plan-serving", "--device", "torch"], "runs on --device virtual only"),
        (["split-k-clobber", "--trace", ""], "--trace: is empty; name a folder"),
        (["split-k-clobber", "--trace", "file"], "file: is a file; name a folder"),
        (["split-k-clobber", "--full"], "--full is of unordered-plan-serving only"),
        (["unordered-plan-serving", "--full", "--trace", "traces"], "not recorded"),
    ],
)
def test_what_it_does_not_know_is_refused(arguments, said, tmp_path):
    (tmp_path / "file").touch()
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_later_mode_that_is_recorded_already_is_refused_before_the_first_runs(tmp_path):
    taken = tmp_path / "traces" / "keyed-by-stream" / "virtual_1.db"
    taken.parent.mkdir(parents=True)
    taken.touch()
    done = run("split-k-clobber", "--trace", "traces", cwd=tmp_path)
    assert done.returncode == 2
    assert "traces/keyed-by-stream: holds files and is not overwritten" in done.stderr
    assert [path.name for path in taken.parents[1].iterdir()] == ["keyed-by-stream"]


@pytest.mark.parametrize(
    "variables", [{"GPU_MAX_HW_QUEUES": "0"}, {"HIP_LAUNCH_BLOCKING": "perhaps"}]
)
def test_a_variable_of_hip_that_no_device_can_have_is_bad_usage(variables, tmp_path):
    done = run("pending-wait", "--trace", "traces", cwd=tmp_path, **variables)
    assert done.returncode == 2
    assert "is not allowed; give" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "traces").exists()


def test_a_recording_that_another_run_has_begun_is_left_to_it(monkeypatch, capsys, tmp_path):
    # The other one makes its folder when this one has found none.
    monkeypatch.setattr(Lab, "_new_folder", lambda lab, name: lab.folder / name)
    (tmp_path / "keyed-by-shape" / "virtual_1.spool").mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["reproducers", "split-k-clobber", "--trace", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert "is the spool of another recording" in capsys.readouterr().err


def test_a_fix_that_faults_fails(monkeypatch, capsys):
    class Faulty(split_k_clobber.TwoStreamAttention):
        def queue(self, *, is_ordered):
            raise MemoryFault("split_k_attend", 0x4000, "nothing")

    monkeypatch.setattr(split_k_clobber, "TwoStreamAttention", Faulty)
    monkeypatch.setattr(sys, "argv", ["reproducers", "split-k-clobber"])
    assert command.main() == 1
    assert "split_k_attend touched address 0x4000" in capsys.readouterr().err


def test_what_is_not_a_number_is_not_clean(monkeypatch):
    class Odd(split_k_clobber.TwoStreamAttention):
        def errors(self):
            return [0.0, float("nan")]

    monkeypatch.setattr(split_k_clobber, "TwoStreamAttention", Odd)
    found = outcomes(split_k_clobber.REPRODUCER)
    assert found["keyed-by-stream"].problem == "stream 1 is wrong"

    class OddPrefill(unordered_plan._Prefill):
        def error(self):
            # Neither first nor last of the rows that are looked at, where `max` forgets it.
            self.result.on_host()[unordered_plan._EVERY] = float("nan")
            return super().error()

    monkeypatch.setattr(unordered_plan, "_Prefill", OddPrefill)
    monkeypatch.setattr(unordered_plan, "get_args", lambda _: ["staged"])
    for outcome in unordered_plan.run(Lab("virtual"), (100,), (100,)):
        assert outcome.problem == "the result of A and B is wrong"
