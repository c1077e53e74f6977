"""The null stream of ROCm 7.2 where it takes a hardware queue anew after a while without work."""

import pytest

from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.virtual import Config, VirtualDevice

LONG_NS, WHILE_NS = 50_000_000, 2_000_000


def device_of(**options):
    return VirtualDevice(Config(tensors=False, host_costs_ns={"while": WHILE_NS}, **options))


def copies_under_work(count, **options):
    """Copy that often, each time under a long kernel; return whether each waited for the kernel."""
    device = device_of(**options)
    forward = device.stream()
    target = device.allocate([64], "int64")
    source = device.host_buffer([64], "int64")
    waited = []
    for _ in range(count):
        device.launch(Kernel("long", LONG_NS), forward)
        device.elapse("while")
        began_ns = device.now_ns
        device.copy(target, source)
        waited.append(device.now_ns - began_ns > LONG_NS / 2)
        device.synchronize()
        device.elapse("while")
    return waited


def test_by_default_it_stays_where_its_first_work_was():
    # With the kernel's queue taken it gets another one, for good.
    assert copies_under_work(20) == [False] * 20


@pytest.mark.parametrize(("share", "waits"), [(0.0, False), (1.0, True)])
def test_it_follows_the_fullest_queue_never_or_always(share, waits):
    assert copies_under_work(20, null_follows_share=share) == [waits] * 20


def test_it_follows_in_the_share_that_is_asked_for_and_equal_seeds_follow_alike():
    waited = copies_under_work(400, null_follows_share=0.7, seed=3)
    # Four standard deviations of 400 draws.
    assert abs(sum(waited) - 280) < 4 * (400 * 0.7 * 0.3) ** 0.5
    assert copies_under_work(400, null_follows_share=0.7, seed=3) == waited
    assert copies_under_work(400, null_follows_share=0.7, seed=4) != waited


def test_copies_that_follow_each_other_stay_together():
    device = device_of(null_follows_share=1.0)
    fuller, longer = device.stream(), device.stream()
    target, source = device.allocate([64], "int64"), device.host_buffer([64], "int64")
    for _ in range(2):
        device.launch(Kernel("short", LONG_NS // 2), fuller)
    device.launch(Kernel("long", 3 * LONG_NS), longer)
    began_ns = device.now_ns
    for _ in range(3):
        # The first waits for the queue of two kernels; then the other one is the fullest.
        device.copy(target, source)
        assert LONG_NS <= device.now_ns - began_ns < 2 * LONG_NS
    device.elapse("while")
    device.copy(target, source)
    assert device.now_ns - began_ns > 3 * LONG_NS


def test_on_rocm_10_it_has_a_queue_of_its_own_all_the_same():
    assert copies_under_work(20, null_follows_share=1.0, rocm="10") == [False] * 20


def test_with_one_hardware_queue_there_is_nothing_to_choose():
    assert copies_under_work(20, null_follows_share=0.0, max_hw_queues=1) == [True] * 20


def test_work_that_it_still_has_keeps_its_order():
    device = VirtualDevice(Config(null_follows_share=0.5, host_costs_ns={"while": WHILE_NS}))
    null = device.null_stream
    buffer = device.allocate([1], "int64")
    add = Kernel("add", 3 * WHILE_NS, function=lambda target: target.add_(1))
    double = Kernel("double", WHILE_NS, function=lambda target: target.mul_(2))
    for _ in range(10):
        device.launch(add, null, writes=[buffer])
        device.elapse("while")
        device.launch(double, null, writes=[buffer])
        device.elapse("while")
    host = device.host_buffer([1], "int64")
    device.copy(host, buffer)
    expected = 0
    for _ in range(10):
        expected = (expected + 1) * 2
    assert int(host.on_host()) == expected


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), True, "0.5"])
def test_what_is_no_share_is_refused(share):
    with pytest.raises(ValueError, match=r"null_follows_share: .* give a share from 0 to 1, or"):
        Config(null_follows_share=share)
