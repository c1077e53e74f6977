"""tracekit's report of a virtual recording gives the busy and idle time that the device counted."""

import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from program_strategies import program_strategy
from run_program import run_program
from virtual_configs import CONFIGS

from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.virtual import VirtualDevice
from instrumented_runtime.recorder import Recorder
from tracekit.formats import read_trace, silent
from tracekit.pipeline import analyse


def busy_by_instants(spans):
    """Count busy time the slow way: between each two neighbouring bounds, does anything run?"""
    bounds = sorted({at for span in spans for at in span})
    return sum(
        after - before
        for before, after in pairwise(bounds)
        if any(start <= before and after <= end for start, end in spans)
    )


class Contending:
    """A device whose kernels mind each other, but are otherwise those of the program."""

    def __init__(self, device):
        self._device = device

    def __getattr__(self, name):
        return getattr(self._device, name)

    def launch(self, kernel, stream, reads=(), writes=()):
        minding = Kernel(kernel.name, kernel.cost_ns, kernel.function, sensitivity=0.4)
        self._device.launch(minding, stream, reads, writes)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(program_strategy(), CONFIGS)
def test_busy_and_idle_are_exactly_what_the_device_counted(program, config):
    with tempfile.TemporaryDirectory() as folder:
        with Recorder(Path(folder), environment=config.environment()) as recorder:
            device = VirtualDevice(config, recorder)
            run_program(program, Contending(device))
            device.synchronize()
            path = recorder.close()
        trace = read_trace([path], silent)
        ops = trace.table("ops")
        tally = device.tally
        if not tally.span_ns:
            assert ops.is_empty()
            return
        report = analyse(trace, only=["idle-gaps"])
    (summary,) = report.devices
    assert summary.busy_ns == tally.busy_ns
    assert sum(summary.idle_ns_by_cause.values()) == tally.idle_ns
    assert summary.span_ns == tally.span_ns
    assert tally.busy_ns == busy_by_instants(ops.select("start_ns", "end_ns").rows())
    # A hardware queue of the model is serial, so lengths add up; copies name no queue in rocpd.
    lengths = (ops["end_ns"] - ops["start_ns"]).sum()
    assert sum(device.queue_busy_ns.values()) == lengths
