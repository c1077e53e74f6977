"""A discrete-event model of a HIP device: known truths on any machine, and never hardware.

Host code runs for real and in order; the device, and the host's clock with it, run in virtual
nanoseconds. Nothing reads the wall clock, so two runs of one program, configuration and seed are
the same to the byte. What is modelled, and with which constants, is in `config`.
"""

from instrumented_runtime.devices.virtual.config import Config, Timing
from instrumented_runtime.devices.virtual.device import VirtualDevice

__all__ = ["Config", "Timing", "VirtualDevice"]
