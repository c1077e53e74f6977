"""What a patch may not do to a server: fail in its place, or be gone while it says it is there."""

import importlib
import sys
import types

import patches_here
import pytest
from sources import changed_sglang
from test_forward_stream_scheduling import NAME, SCHEDULER, SERVER

DELAYER = "sglang.srt.managers.min_free_slots_delayer"


@pytest.mark.parametrize(
    "breaks",
    [
        # Asked for the decision, as SGLang does where its groups are not there yet.
        "module.get_parallel = lambda: 1 // 0",
        # Or when the decision is carried out.
        "type(scheduler.forward_stream).wait_stream = lambda *_given: 1 // 0",
    ],
)
def test_a_patch_that_fails_where_the_loop_begins_lets_it_begin_as_it_was(run, breaks):
    program = f"""
        reports = patches_here.install("{NAME}")
        looped = []
        device = FakeDevice()
        loop = patches_here.sys.modules["_tracekit_patches.forward_stream_scheduling"]._placed(
            lambda scheduler: looped.append(scheduler.schedule_stream.name), module,
            SimpleNamespace(say=lambda *said: reports.update({{"{NAME}": said}})),
        )
        torch.get_device_module = lambda *_device: device.module()
        scheduler = Scheduler(device, SimpleNamespace(needs_cpu_seq_lens=False))
        {breaks}
        loop(scheduler)
        result = [reports["{NAME}"], looped, overlap._is_hip]
    """
    (state, reason), looped, is_hip = run(SERVER, program, modules=[SCHEDULER])
    assert (state, looped, is_hip) == ("refused", ["schedule"], True)
    assert "ZeroDivisionError" in reason


def test_a_module_that_is_loaded_anew_is_patched_anew(tmp_path, monkeypatch):
    changed_sglang("min-free-slots", (DELAYER, SCHEDULER), {}, tmp_path, monkeypatch)
    modules = {}
    for name, kind, method in (
        (DELAYER, "MinFreeSlotsDelayer", "should_delay"),
        (SCHEDULER, "Scheduler", "_get_new_batch_prefill_raw"),
    ):
        modules[name] = types.ModuleType(name)
        setattr(modules[name], kind, type(kind, (), {method: len}))
    callbacks, reports = {}, {}
    patches_here.patches().install(
        ["min-free-slots"], callbacks.__setitem__, lambda name, *said: reports.update({name: said})
    )
    for name, module in modules.items():
        callbacks[name](module)
    assert reports["min-free-slots"][0] == "applied"
    anew = modules[DELAYER]
    anew.MinFreeSlotsDelayer = type("MinFreeSlotsDelayer", (), {"should_delay": max})
    callbacks[DELAYER](anew)
    assert anew.MinFreeSlotsDelayer.should_delay.__wrapped__ is max
    assert reports["min-free-slots"][0] == "applied"


def test_a_patch_that_cannot_be_loaded_is_refused_and_the_others_are_installed(monkeypatch):
    package = patches_here.patches()
    name = f"{package.__name__}.min_free_slots"
    importlib.import_module(name)
    # The import of a module that stands as None fails.
    monkeypatch.setitem(sys.modules, name, None)
    reports = patches_here.install("min-free-slots", "stage-ps-metadata", modules={})
    assert reports["min-free-slots"][0] == "refused"
    assert reports["stage-ps-metadata"][0] == "waiting"
