"""The virtual device against the oracle, which knows nothing of how it orders work."""

from hypothesis import HealthCheck, given, settings
from program_strategies import program_strategy
from run_program import disagreements
from virtual_configs import CONFIGS

from instrumented_runtime.devices.virtual import VirtualDevice


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(program_strategy(), CONFIGS)
def test_a_read_that_can_see_one_value_only_sees_that_on_every_device(program, config):
    assert not disagreements(program, lambda: VirtualDevice(config))
