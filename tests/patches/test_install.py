"""How patches are installed: by name, whole or not at all, in a real process by its environment."""

import importlib
import json
import os
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import patches_here
from sources import changed_sglang

RUNTIME = Path(__file__).resolve().parents[2] / "instrumented_runtime"


def test_the_manifest_lists_the_patches_there_are():
    content = tomllib.loads((RUNTIME / "hooks_and_patches.toml").read_text())
    assert [patch["name"] for patch in content["patch"]] == patches_here.patches().patch_names()


def test_an_unknown_patch_is_refused_with_the_known_names():
    assert patches_here.install("min-free-slot", modules={}) == {
        "min-free-slot": (
            "refused",
            "there is no such patch; there are forward-stream-scheduling, min-free-slots, "
            "multi-stream-opt-in, stage-ps-metadata",
        )
    }


def test_a_patch_whose_program_does_not_come_waits():
    reports = patches_here.install("stage-ps-metadata", "min-free-slots", modules={})
    assert reports == {
        "stage-ps-metadata": ("waiting", "sglang or vllm is not imported in this process"),
        "min-free-slots": ("waiting", "sglang is not imported in this process"),
    }


def test_patches_import_nothing_but_the_standard_library():
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import patches_here
before = set(sys.modules)
for name in patches_here.patches().patch_names():
    patches_here.patches()._patch(name)
tops = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(sorted(tops - set(sys.stdlib_module_names)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['_tracekit_patches']\n"


DELAYER = "sglang.srt.managers.min_free_slots_delayer"
SCHEDULER = "sglang.srt.managers.scheduler"


def test_a_failure_halfway_takes_everything_back(tmp_path, monkeypatch):
    changed_sglang("min-free-slots", (DELAYER, SCHEDULER), {}, tmp_path, monkeypatch)
    delayer, scheduler = types.ModuleType(DELAYER), types.ModuleType(SCHEDULER)
    delayer.MinFreeSlotsDelayer = type("MinFreeSlotsDelayer", (), {"should_delay": len})
    modules = {DELAYER: delayer, SCHEDULER: scheduler}
    reports = patches_here.install("min-free-slots", modules=modules)
    state, reason = reports["min-free-slots"]
    assert state == "refused"
    assert "Scheduler" in reason
    assert delayer.MinFreeSlotsDelayer.should_delay is len


def test_between_its_modules_a_patch_says_what_it_waits_for(tmp_path, monkeypatch):
    changed_sglang("min-free-slots", (DELAYER, SCHEDULER), {}, tmp_path, monkeypatch)
    delayer = types.ModuleType(DELAYER)
    delayer.MinFreeSlotsDelayer = type("MinFreeSlotsDelayer", (), {"should_delay": len})
    reports = patches_here.install("min-free-slots", modules={DELAYER: delayer})
    assert reports["min-free-slots"] == ("waiting", f"applied to {DELAYER}; waits for {SCHEDULER}")


def test_who_imported_a_function_by_name_before_gets_the_patched_one_too(monkeypatch):
    patches_here.patches()
    work = importlib.import_module("_tracekit_patches.parts.work").Work(None, None)
    names = ("server", "server.args", "server.main", "serverless")
    package, args, main, other = (types.ModuleType(name) for name in names)
    for module in (package, args, main, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    args.adjust = main.adjust = other.adjust = abs
    package.adjust = len
    work.replace(args, "adjust", lambda before: (before, "patched"))
    assert args.adjust == main.adjust == (abs, "patched")
    assert (package.adjust, other.adjust) == (len, abs)
    work.undo()
    assert args.adjust is main.adjust is abs


DELAYER_SOURCE = """
class MinFreeSlotsDelayer:
    _min_free_slots = 4

    def should_delay(self, *, running_bs: int, num_allocatable_reqs: int) -> bool:
        return running_bs > 0 and num_allocatable_reqs < self._min_free_slots
"""
SCHEDULER_SOURCE = """
from sglang.srt.managers.min_free_slots_delayer import MinFreeSlotsDelayer


class Scheduler:
    def __init__(self, waiting):
        self.waiting_queue = [None] * waiting
        self.min_free_slots_delayer = MinFreeSlotsDelayer()

    def _get_new_batch_prefill_raw(self, running):
        if not len(self.waiting_queue):
            return None
        return self.min_free_slots_delayer.should_delay(
            running_bs=running, num_allocatable_reqs=256 - running
        )
"""
PROGRAM = """
import multiprocessing
import sys


def work():
    from sglang.srt.managers.scheduler import Scheduler

    print(Scheduler(2)._get_new_batch_prefill_raw(254), Scheduler(3)._get_new_batch_prefill_raw(254))
    sys.stdout.flush()


if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    print(child.pid)
"""


def test_hooks_install_patches_in_the_processes_that_a_server_starts(tmp_path):
    managers = tmp_path / "sglang" / "srt" / "managers"
    managers.mkdir(parents=True)
    for folder in (managers, managers.parent, managers.parents[1]):
        (folder / "__init__.py").touch()
    (managers / "min_free_slots_delayer.py").write_text(DELAYER_SOURCE)
    (managers / "scheduler.py").write_text(SCHEDULER_SOURCE)
    (tmp_path / "server.py").write_text(PROGRAM)
    reports = tmp_path / "hooks"
    reports.mkdir()
    (reports / "window").write_bytes(b"\0")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(RUNTIME / "hooks" / "path"), str(tmp_path)]),
        "TRACEKIT_PATCHES": "min-free-slots",
        "TRACEKIT_HOOKS_DIR": str(reports),
    }
    done = subprocess.run(
        [sys.executable, "server.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    answers, pid = done.stdout.splitlines()
    assert answers == "False True"
    states = {
        int(path.stem): json.loads(path.read_text())["patches"]["min-free-slots"]["state"]
        for path in reports.glob("*.json")
    }
    assert states.pop(int(pid)) == "applied"
    assert set(states.values()) == {"waiting"}
