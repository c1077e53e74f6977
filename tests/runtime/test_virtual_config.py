"""What the virtual device's configuration refuses, and what HIP's environment asks for."""

import pytest

from instrumented_runtime.devices.virtual import Config, Timing, VirtualDevice


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_hw_queues": 0}, "max_hw_queues: 0 is not allowed; give a number from 1 to 64"),
        ({"max_hw_queues": True}, "max_hw_queues: True is not allowed"),
        ({"rocm": "6.4"}, "rocm: '6.4' is not allowed; give 7.2 or 10"),
        ({"serialize_copy": 4}, "serialize_copy: 4 is not allowed; give 0, 1, 2 or 3"),
        ({"kernel_jitter": 1.0}, "kernel_jitter: 1.0 is not allowed; give a share"),
        ({"kernel_jitter": float("nan")}, "kernel_jitter: nan is not allowed"),
        ({"seed": -1}, "seed: -1 is not allowed"),
        ({"tensors": 1}, "tensors: 1 is not allowed; give true or false"),
        ({"host_costs_ns": {"plan": -5}}, r"host_costs_ns\['plan'\]: -5 is not allowed"),
        ({"host_costs_ns": 5}, "host_costs_ns: 5 is not allowed"),
        ({"timing": {"dispatch_ns": -1}}, "timing.dispatch_ns: -1 is not allowed"),
        ({"timing": {"copy_bytes_per_ns": 0}}, "timing.copy_bytes_per_ns: 0 is not allowed"),
        ({"timing": {"dispatch_ns": 10**30}}, "timing.dispatch_ns: 1000"),
        (
            {"timing": {"calls_ns": {"hipLaunchKernl": 1}}},
            "no such HIP call; did you mean hipLaunchK",
        ),
        ({"timing": 3}, "timing: 3 is not allowed"),
        ({"max_queues": 4}, "max_queues: no such option; did you mean max_hw_queues"),
        ({"timing": {"dispach_ns": 1}}, "dispach_ns: no such option of timing; did you mean disp"),
    ],
)
def test_what_cannot_be_modelled_is_refused_by_name(options, said):
    with pytest.raises(ValueError, match=said):
        Config.from_options(options)


def test_the_environment_of_hip_is_understood():
    environment = {
        "GPU_MAX_HW_QUEUES": "1",
        "AMD_SERIALIZE_COPY": "3",
        "HIP_LAUNCH_BLOCKING": "1",
        "HOME": "/root",
    }
    config = Config.from_environment(environment, seed=3)
    assert config == Config(max_hw_queues=1, serialize_copy=3, launch_blocking=True, seed=3)


def test_ordering_edges_are_switched_off_by_the_environment():
    off = {"DEBUG_CLR_DISABLE_ORDERING_EDGE": "1"}
    assert not Config.from_environment(off, ordering_edges=True).ordering_edges
    assert Config.from_environment({}, ordering_edges=True).ordering_edges


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("GPU_MAX_HW_QUEUES", "many"),
        ("GPU_MAX_HW_QUEUES", "٣"),
        ("AMD_SERIALIZE_COPY", "-1"),
        ("HIP_LAUNCH_BLOCKING", "yes"),
    ],
)
def test_a_variable_that_makes_no_sense_is_refused_by_name(variable, text):
    with pytest.raises(ValueError, match=f"{variable}: '{text}' is not allowed"):
        Config.from_environment({variable: text})


def test_what_a_configuration_asks_for_can_be_read_back():
    config = Config(max_hw_queues=2, serialize_copy=1, launch_blocking=True, ordering_edges=True)
    assert Config.from_environment(config.environment(), ordering_edges=True) == config


def test_work_of_the_host_without_a_cost_is_refused():
    device = VirtualDevice(Config(host_costs_ns={"plan": 5}))
    with pytest.raises(ValueError, match="kind: 'plann' has no cost; known: plan"):
        device.elapse("plann")


def test_constants_cannot_be_changed_in_use():
    with pytest.raises(AttributeError):
        Timing().dispatch_ns = 3
