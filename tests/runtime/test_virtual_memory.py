"""Memory of the virtual device: reuse in stream order, bounds, faults."""

import polars as pl
import pytest
from virtual_runs import device_of

from instrumented_runtime.devices import Kernel, MemoryFault, store_rows
from instrumented_runtime.recorder import Recorder
from tracekit.formats import read_trace, silent


def test_freed_memory_is_reused_by_its_own_stream_and_by_no_other():
    device = device_of()
    stream, other = device.stream(), device.stream()
    first = device.allocate([100], "float32", stream=stream)
    device.free(first)
    elsewhere = device.allocate([100], "float32", stream=other)
    again = device.allocate([90], "float32", stream=stream)
    assert again.address == first.address != elsewhere.address


def test_what_is_too_large_for_a_freed_block_gets_a_new_one():
    device = device_of()
    first = device.allocate([100], "float32")
    device.free(first)
    assert device.allocate([1000], "float32").address != first.address


def test_a_reused_block_is_written_in_stream_order():
    device = device_of()
    stream = device.stream()
    old, kept = device.allocate([1], "int64", stream=stream), device.allocate([1], "int64")
    device.launch(Kernel("fill", 9_000, function=lambda t: t.fill_(3)), stream, writes=[old])
    device.launch(Kernel("keep", 9_000, function=lambda s, t: t.copy_(s)), stream, [old], [kept])
    device.free(old)
    new = device.allocate([1], "int64", stream=stream)
    device.launch(Kernel("fill", 9_000, function=lambda t: t.fill_(8)), stream, writes=[new])
    device.synchronize()
    seen = device.host_buffer([1], "int64")
    device.copy(seen, kept)
    assert (int(seen.on_host()[0]), new.address) == (3, old.address)


def test_memory_is_freed_once():
    device = device_of()
    buffer = device.allocate([1], "int64", name="plan")
    device.free(buffer)
    with pytest.raises(ValueError, match="plan: is freed already"):
        device.free(buffer)
    with pytest.raises(ValueError, match="notes: is host memory"):
        device.free(device.host_buffer([1], "int64", name="notes"))


def scattering(device, row, width=4):
    """Store a row of an output of 4 rows, the row number being in device memory."""
    import torch

    rows, output = device.allocate([1], "int64"), device.allocate([4, width], "int64", name="out")
    here = device.host_buffer([1], "int64")
    here.on_host().fill_(row)
    device.copy(rows, here)
    values = torch.ones(1, width, dtype=torch.int64)
    reduce = Kernel("reduce", 100, function=lambda r, t: store_rows(t, r, values))
    device.launch(reduce, device.null_stream, reads=[rows], writes=[output])
    return output


def test_a_store_within_bounds_is_done():
    device = device_of()
    output = scattering(device, 3)
    device.synchronize()
    seen = device.host_buffer([4, 4], "int64")
    device.copy(seen, output)
    assert seen.on_host().sum(1).tolist() == [0, 0, 0, 4]


@pytest.mark.parametrize("row", [4, -1, 1000])
def test_a_store_out_of_bounds_names_kernel_address_and_the_nearest_buffer(row):
    device = device_of()
    output = scattering(device, row)
    with pytest.raises(MemoryFault, match="Memory access fault: reduce") as fault:
        device.synchronize()
    # Rows are 4 × 8 bytes.
    assert fault.value.address == output.address + row * 32
    assert fault.value.nearest == f"out at {output.address:#x}, 128 bytes"


@pytest.mark.parametrize("column", [0, 2])
def test_an_empty_buffer_lies_at_null_and_a_store_to_it_near_null(column):
    import torch

    device = device_of()
    beside = device.allocate([4], "int64", name="beside")
    empties = [device.allocate([0, 4], "float32", name=name) for name in ("lse", "output")]
    assert [buffer.address for buffer in empties] == [0, 0] == [torch.empty(10)[3:3].data_ptr()] * 2
    rows, values = torch.tensor([27 * 256]), torch.ones(1, 2)

    def function(_, output):
        store_rows(output[:, column : column + 2], rows, values)

    device.launch(Kernel("forward", 100, function), device.null_stream, writes=empties)
    with pytest.raises(MemoryFault) as fault:
        device.synchronize()
    # Rows are 4 × 4 bytes, wherever other memory is.
    assert fault.value.address == 27 * 256 * 16 + 4 * column < beside.address
    assert fault.value.nearest == "output at 0x0, 0 bytes"


def test_empty_buffers_are_copied_and_freed_like_others_and_take_no_memory():
    device = device_of()
    empty = device.allocate([0], "int64", name="none")
    here = device.host_buffer([0], "int64", pinned=True)
    assert (here.address, here.on_host().tolist()) == (0, [])
    device.copy(empty, here)
    device.free(empty)
    with pytest.raises(ValueError, match="none: is freed already"):
        device.free(empty)
    first, second = device.allocate([0], "int64"), device.allocate([1], "int64")
    assert first.address != second.address


def test_after_a_fault_the_device_is_lost():
    device = device_of()
    scattering(device, 4)
    with pytest.raises(MemoryFault):
        device.synchronize()
    for call in (
        device.synchronize,
        device.event,
        lambda: device.launch(Kernel("a", 1), device.null_stream),
    ):
        with pytest.raises(MemoryFault, match="reduce"):
            call()


def test_the_host_looks_at_host_memory_only():
    device = device_of()
    with pytest.raises(ValueError, match="plan: is device memory; copy it"):
        device.allocate([1], "int64", name="plan").on_host()
    without = device_of(tensors=False).host_buffer([1], "int64", name="notes")
    with pytest.raises(ValueError, match="notes: the device runs without tensors"):
        without.on_host()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda d: d.allocate([1], "int65"), "dtype: 'int65' is not allowed; give one of bool"),
        (lambda d: d.allocate([-1], "int64"), r"shape: \(-1,\) is not allowed"),
        (
            lambda d: d.copy(d.host_buffer([1], "int64"), d.host_buffer([1], "int64")),
            "both sides are host memory",
        ),
        (
            lambda d: d.copy(d.allocate([1], "int64"), d.host_buffer([1], "int64"), size_bytes=9),
            "size_bytes: 9 is not allowed; give 0 to 8",
        ),
        (
            lambda d: d.launch(Kernel("none", 0), d.null_stream),
            "cost_ns of none: 0; give a whole number",
        ),
        (
            lambda d: d.launch(Kernel("half", 1.5), d.null_stream),
            "cost_ns of half: 1.5; give a whole",
        ),
        (
            lambda d: d.launch(Kernel("odd", 5, sensitivity=-0.5), d.null_stream),
            "sensitivity of odd: -0.5; give a share",
        ),
        (
            lambda d: d.launch(Kernel("nan", 5, sensitivity=float("nan")), d.null_stream),
            "sensitivity of nan: nan",
        ),
        (lambda d: d.launch(Kernel("huge", 1 << 62), d.null_stream), "cost_ns of huge"),
        (lambda d: d.allocate([1.5], "int64"), r"shape: \(1.5,\) is not allowed"),
        (lambda d: d.elapse("think", -1), "count: -1 is not allowed"),
        (lambda d: d.elapse("think", 0.5), "count: 0.5 is not allowed"),
        (lambda d: d.stream(priority=0.5), "priority: 0.5 is not allowed"),
        (
            lambda d: d.copy(
                device_of().allocate([1], "int64", name="theirs"), d.allocate([1], "int64")
            ),
            "theirs: is not a buffer of this device",
        ),
        (lambda d: d.stream(flags="lazy"), "flags: 'lazy' is not allowed; give blocking"),
    ],
)
def test_what_cannot_be_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call(device_of(host_costs_ns={"think": 1}))


def test_a_copy_of_the_first_bytes_leaves_the_others():
    device = device_of()
    there, here = device.allocate([2], "int64"), device.host_buffer([2], "int64")
    here.on_host().fill_(5)
    device.copy(there, here, size_bytes=8)
    here.on_host().fill_(0)
    device.copy(here, there)
    assert here.on_host().tolist() == [5, 0]


def test_freed_memory_cannot_be_used():
    device = device_of()
    buffer = device.allocate([1], "int64", name="plan")
    device.free(buffer)
    with pytest.raises(ValueError, match="plan: is freed already"):
        device.launch(
            Kernel("a", 100, function=lambda target: target.fill_(1)),
            device.null_stream,
            writes=[buffer],
        )


def failing(device):
    """A graph of four kernels whose second fails, beside a long kernel."""

    def fail(_target):
        raise ArithmeticError("no such plan")

    main, side = device.stream(), device.stream()
    buffer = device.allocate([1], "int64")
    with device.capture(main) as graph:
        for number in range(4):
            function = fail if number == 1 else None
            device.launch(Kernel(f"k{number}", 1_000, function=function), main, writes=[buffer])
    return graph, main, side


@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize("is_graph", [False, True])
def test_what_ran_until_a_kernel_failed_is_recorded_and_counted(tmp_path, is_beside, is_graph):
    with Recorder(tmp_path, environment={}) as recorder:
        device = device_of(recorder)
        graph, main, side = failing(device)
        if is_beside:
            device.launch(Kernel("long", 50_000), side)
        if is_graph:
            graph.replay(main)
        else:
            for number in range(3):
                device.launch(
                    Kernel(f"k{number}", 1_000, function=broken if number == 1 else None), main
                )
        with pytest.raises(ArithmeticError) as error:
            device.synchronize()
        assert any("in kernel k1" in note for note in error.value.__notes__)
        with pytest.raises(ArithmeticError):
            device.host_buffer([1], "int64")
    ops = read_trace([tmp_path / "virtual_1.db"], silent).table("ops")
    names = {"k0", "k1", *(["long"] if is_beside else [])}
    assert set(ops["name"].cast(pl.String)) == names
    assert ops["end_ns"].max() - ops["start_ns"].min() == device.tally.span_ns
    end_of_k1 = ops.filter(name="k1")["end_ns"].item()
    assert ops["end_ns"].max() == end_of_k1
    busy_ns = device.tally.busy_ns
    assert busy_ns == (device.tally.span_ns if is_beside else 2_000)


def broken():
    raise ArithmeticError("no such plan")
