"""HIP and CUDA names mean the same kinds."""

import polars as pl
import pytest

from tracekit.api_calls import call_kind, call_kinds, copy_blocks
from tracekit.tables.activity import CALL_KINDS


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (
            "hipLaunchKernel hipModuleLaunchKernel hipExtModuleLaunchKernel cuLaunchKernelEx",
            "launch",
        ),
        ("hipGraphLaunch cudaGraphLaunch cudaGraphLaunch_v10000", "graph_launch"),
        ("hipMemcpy hipMemcpyAsync hipMemcpyWithStream cudaMemcpy2DAsync_ptsz", "copy"),
        ("hipMemsetAsync cudaMemset", "fill"),
        ("hipEventRecord cudaEventRecordWithFlags", "event_record"),
        ("hipStreamWaitEvent cudaStreamWaitEvent_v3020", "event_wait"),
        ("hipEventSynchronize cudaEventSynchronize", "event_sync"),
        ("hipEventQuery cudaStreamQuery", "event_query"),
        ("hipStreamSynchronize cuStreamSynchronize", "stream_sync"),
        ("hipDeviceSynchronize cudaDeviceSynchronize cuCtxSynchronize", "device_sync"),
        ("hipStreamCreateWithFlags cudaStreamCreate", "stream_create"),
        ("hipMalloc hipHostMalloc cudaMallocAsync cuMemAlloc_v2 hipMemAllocHost", "malloc"),
        ("hipFree hipHostFree cudaFreeAsync cuMemFree_v2", "free"),
        ("cudaLaunchHostFunc hipStreamAddCallback", "callback"),
        ("hipGetDevice __hipPushCallConfiguration hipStreamWaitValue32", "other"),
    ],
)
def test_a_name_has_one_kind_on_both_vendors(names, kind):
    assert {call_kind(name) for name in names.split()} == {kind}


def test_kinds_of_a_column_are_those_of_its_names_and_null_is_other():
    names = pl.Series(["hipFree", None, "hipLaunchKernel", "hipFree"], dtype=pl.Categorical)
    expected = pl.Series(["free", "other", "launch", "free"], dtype=pl.Enum(CALL_KINDS))
    assert call_kinds(names).to_list() == expected.to_list()
    assert call_kinds(names).dtype == expected.dtype


@pytest.mark.parametrize(
    ("name", "direction", "blocks"),
    [
        ("hipMemcpy", "host-to-device", True),
        ("hipMemcpyWithStream", "device-to-host", True),
        ("hipMemcpyAsync", "device-to-host", None),
        ("hipMemcpy", "device-to-device", None),
    ],
)
def test_only_a_synchronous_copy_to_or_from_the_host_is_known_to_block(name, direction, blocks):
    assert copy_blocks(name, direction) is blocks
