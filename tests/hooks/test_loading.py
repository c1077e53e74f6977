"""Hooks reach every Python process by its environment, and no failure of theirs ends it."""

import os
import shutil
import subprocess
import sys
import tomllib

import pytest
from hooked import HOOKS, ROOT, run_hooked

# A package in place of the real one: its version and one function a hook knows.
TORCH = "__version__ = '9'\n"


@pytest.fixture
def torch_folder(tmp_path):
    """A folder with a package `torch` that has nothing in it."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "torch.py").write_text(TORCH)
    return tmp_path / "packages"


def test_all_is_found_without_this_project_and_needs_the_standard_library_alone(tmp_path):
    names = [path.stem for path in HOOKS.glob("*.py") if path.stem != "__init__"]
    code = f"""
import importlib, sys
hooks = sys.modules["_tracekit_hooks"]
for name in {names}:
    importlib.import_module("_tracekit_hooks." + name)
from _tracekit_hooks.markers import beside
beside("grammar"), beside("backends")
tops = {{name.partition(".")[0] for name in sys.modules}}
print(sorted(
    name for name in tops
    if name not in sys.stdlib_module_names and not name.startswith(("_tracekit_", "__editable__"))
))
"""
    ran = run_hooked(code, tmp_path, hooks="sglang", flags=("-s",))
    assert ran.log == ""
    allowed = {"sitecustomize", "_distutils_hack", "_virtualenv", "__main__", "__mp_main__"}
    assert set(eval(ran.output)) <= allowed


def test_a_process_that_imports_nothing_of_interest_writes_nothing(tmp_path):
    ran = run_hooked("print('here')", tmp_path, hooks="sglang,torch_streams,torch_profiler")
    assert (ran.output, ran.log, ran.reports) == ("here\n", "", [])


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_children_are_hooked_whatever_makes_them(tmp_path, torch_folder, method):
    code = f"""
import multiprocessing, os, sys, threading

def child():
    import torch
    from in_server import turn_window
    turn_window()

if __name__ == "__main__":
    if {method!r} == "fork":
        import torch
    process = multiprocessing.get_context({method!r}).Process(target=child)
    process.start()
    process.join()
    print(process.pid, os.getpid(), process.exitcode)
"""
    ran = run_hooked(code, tmp_path, hooks="torch_profiler", paths=[torch_folder])
    child, parent, status = map(int, ran.output.split())
    assert status == 0, ran.log
    reports = {report["pid"]: report for report in ran.reports}
    assert reports.keys() == ({child} if method == "spawn" else {child, parent})
    assert reports[child]["window"] == 1
    assert reports[child]["versions"] == {"torch": "9"}


@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_python_can_be_told_to_leave_them_out(tmp_path, torch_folder, flag):
    code = "import sys; print('_tracekit_hooks' in sys.modules)"
    assert run_hooked(code, tmp_path, hooks="roctx_window", flags=[flag]).output == "False\n"
    assert run_hooked(code, tmp_path, hooks="roctx_window").output == "True\n"


def test_a_sitecustomize_that_ours_hides_runs_as_it_did(tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys; print('hidden', __file__, __name__)")
    code = "import sitecustomize; print(sitecustomize.__file__)"
    ran = run_hooked(code, tmp_path, hooks="sglang", paths=[hidden])
    path = hidden / "sitecustomize.py"
    assert ran.output == f"hidden {path} sitecustomize\n{path}\n"


def test_an_error_of_the_hidden_one_is_python_s_to_report_as_before(tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("raise RuntimeError('of theirs')")
    environment = os.environ | {"PYTHONPATH": str(hidden)}
    command = [sys.executable, "-c", "print('here')"]
    alone = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    ran = run_hooked("print('here')", tmp_path, hooks="sglang", paths=[hidden])
    assert (ran.output, ran.log) == (alone.stdout, alone.stderr)
    assert "of theirs" in ran.log


def test_a_marker_is_no_reason_to_import_torch(tmp_path):
    folder = tmp_path / "vllm" / "v1" / "core" / "sched"
    folder.mkdir(parents=True)
    (folder / "scheduler.py").write_text("class Scheduler:\n    def schedule(self): return 1\n")
    code = """
import sys
from in_server import turn_window
from vllm.v1.core.sched.scheduler import Scheduler
turn_window()
print(Scheduler().schedule(), "torch" in sys.modules)
"""
    ran = run_hooked(
        code, tmp_path, hooks="vllm", paths=[tmp_path], TRACEKIT_MARKERS="record_function"
    )
    assert (ran.output, ran.report["problems"]) == ("1 False\n", [])


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"hooks": "sglang,nonesuch"}, "hook nonesuch"),
        ({"hooks": "torch_profiler", "TRACEKIT_HOOKS_DIR": "/nonexistent"}, "/nonexistent/window"),
        ({"TRACEKIT_PATCHES": "nonesuch"}, "patch"),
    ],
)
def test_what_goes_wrong_is_said_in_the_log_and_the_server_runs(tmp_path, broken, says):
    ran = run_hooked("print('here')", tmp_path, **broken)
    assert (ran.output, ran.status) == ("here\n", 0)
    assert says in ran.log or any(says in str(report["patches"]) for report in ran.reports)


def test_a_broken_package_of_hooks_ends_no_process(tmp_path):
    copy = tmp_path / "hooks"
    shutil.copytree(HOOKS, copy)
    (copy / "process.py").write_text("raise RuntimeError('broken')")
    environment = os.environ | {"PYTHONPATH": str(copy / "path"), "TRACEKIT_HOOKS": "sglang"}
    ran = subprocess.run(
        [sys.executable, "-c", "print('here')"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == "here\n"
    assert ran.stderr == "tracekit: hooks are not installed: RuntimeError('broken')\n"


def test_the_manifest_file_lists_the_hooks_there_are_and_is_shipped():
    manifest = tomllib.loads((HOOKS.parent / "hooks_and_patches.toml").read_text())
    assert (HOOKS.parent / manifest["hooks_path"] / "sitecustomize.py").is_file()
    listed = {hook["name"]: hook for hook in manifest["hook"]}
    there = {path.stem for path in HOOKS.glob("*.py") if "\nHOOK = " in path.read_text()}
    assert listed.keys() == there
    for hook in listed.values():
        assert hook.keys() == {"name", "summary", "package", "default"}
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shipped = shipped["tool"]["setuptools"]["package-data"]["instrumented_runtime"]
    assert {"hooks_and_patches.toml", "hooks/path/*.py"} <= set(shipped)
