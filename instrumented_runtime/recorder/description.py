"""How the modelled machine describes itself: node, process, threads, two agents, kernels, streams.

ROCm's tools read the JSON of an agent field by field and fail where one is absent, so all fields
are there; what the model has no value for is 0.
"""

import hashlib
import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from instrumented_runtime.recorder.schema import RocpdTables
from instrumented_runtime.recorder.spool import Spool

GPU_NAME = "virtual-gfx950"
MODEL = "a discrete-event model of a HIP device in virtual time; not hardware"
CPU, GPU = 0, 1
CODE_OBJECT = 1
_NAMES = {CPU: ("CPU", "virtual-cpu", "CPU"), GPU: ("GPU", GPU_NAME, "virtual")}

_UNMODELLED = (
    "simd_count mem_banks_count caches_count io_links_count cpu_core_id_base simd_id_base "
    "max_waves_per_simd lds_size_in_kb gds_size_in_kb num_gws wave_front_size num_xcc cu_count "
    "array_count num_shader_banks simd_arrays_per_engine cu_per_simd_array simd_per_cu "
    "max_slots_scratch_cu gfx_target_version vendor_id device_id location_id domain "
    "drm_render_minor num_sdma_engines num_sdma_xgmi_engines num_sdma_queues_per_engine "
    "num_cp_queues max_engine_clk_ccompute max_engine_clk_fcompute cu_per_engine "
    "max_waves_per_cu family_id workgroup_max_size grid_max_size local_mem_size hive_id gpu_id "
    "gpu_index"
)
_CAPABILITIES = (
    "HotPluggable HSAMMUPresent SharedWithGraphics QueueSizePowerOfTwo QueueSize32bit "
    "QueueIdleEvent VALimit WatchPointsSupported WatchPointsTotalBits DoorbellType "
    "AQLQueueDoubleMap DebugTrapSupported WaveLaunchTrapOverrideSupported "
    "WaveLaunchModeSupported PreciseMemoryOperationsSupported DEPRECATED_SRAM_EDCSupport "
    "Mem_EDCSupport RASEventNotify ASICRevision SRAM_EDCSupport SVMAPISupported "
    "CoherentHostAccess DebugSupportedFirmware"
)
_NO_SIZE = {"x": 0, "y": 0, "z": 0}

_HASH = int.from_bytes(hashlib.sha256(b"virtual").digest()[:8], "little") % (2**63 - 1)
NODE: dict[str, int | str] = {
    # The profiler takes a node's id from its hash in the same way.
    "id": _HASH % (2**32 - 1),
    "hash": _HASH,
    "machine_id": "virtual",
    "system_name": "virtual",
    "hostname": "virtual",
    "release": "model",
    "version": "model",
    "hardware_name": "virtual",
    "domain_name": "(none)",
}


def _agent_columns(agent: int) -> dict[str, int | str]:
    """Return the columns of an agent's row but node and process."""
    kind, name, vendor = _NAMES[agent]
    names = {"name": name, "vendor_name": vendor, "product_name": name, "model_name": "model"}
    return {
        "id": agent,
        "type": kind,
        "absolute_index": agent,
        "logical_index": agent,
        "type_index": 0,
        "uuid": 0,
        **names,
        "user_name": name,
        "extdata": json.dumps({"model": MODEL, **_agent_fields(agent, names)}),
    }


def _agent_fields(agent: int, names: dict[str, str]) -> dict[str, object]:
    return {
        "size": 312,
        "id": {"handle": agent + 1},
        "type": agent + 1,
        "cpu_cores_count": int(agent == CPU),
        **dict.fromkeys(_UNMODELLED.split(), 0),
        "sdma_fw_version": {"uCodeSDMA": 0, "uCodeRes": 0},
        "fw_version": {"uCode": 0, "Major": 0, "Minor": 0, "Stepping": 0},
        "capability": dict.fromkeys(_CAPABILITIES.split(), 0),
        "workgroup_max_dim": _NO_SIZE,
        "grid_max_dim": _NO_SIZE,
        **names,
        "node_id": agent,
        "logical_node_id": agent,
        "logical_node_type_id": 0,
        "runtime_visibility": {"hsa": 1, "hip": 1, "rccl": 0, "rocdecode": 0},
        "uuid": {"bytes": {f"value{place}": 0 for place in range(16)}},
        "mem_banks": [],
        "caches": [],
        "io_links": [],
    }


def kernel_address(kernel: int) -> int:
    """Return an address that stands for a kernel's function, on the host and on the device."""
    return 0x200000 + 0x100 * kernel


def _code_object_columns() -> dict[str, int | str]:
    """Return the columns of the one code object that holds all kernels."""
    columns: dict[str, int | str] = {
        "uri": "virtual://kernels",
        "load_base": kernel_address(0),
        "load_size": 0,
        "load_delta": 0,
    }
    fields = {"size": 88, "code_object_id": CODE_OBJECT, "agent_id": {"handle": GPU + 1}}
    more = {"storage_type": 2, "memory_base": kernel_address(0), "memory_size": 0}
    extdata = json.dumps({"model": MODEL, **fields, **columns, **more})
    return {"id": CODE_OBJECT, "agent_id": GPU, **columns, "extdata": extdata}


def _kernel_columns(kernel: int, name: str) -> dict[str, int | str]:
    """Return the columns of a kernel's symbol."""
    columns: dict[str, int | str] = {
        "code_object_id": CODE_OBJECT,
        "kernel_name": f"{name}.kd",
        "kernel_object": kernel_address(kernel),
        "kernarg_segment_size": 0,
        "kernarg_segment_alignment": 16,
        "group_segment_size": 0,
        "private_segment_size": 0,
        "sgpr_count": 0,
        "arch_vgpr_count": 0,
        "accum_vgpr_count": 0,
    }
    fields = {
        "size": 88,
        "kernel_id": kernel,
        **columns,
        "kernel_code_entry_byte_offset": 0,
        "kernel_address": {"handle": kernel_address(kernel)},
        "formatted_kernel_name": name,
        "demangled_kernel_name": f"{name}.kd",
        "truncated_kernel_name": f"{name}.kd",
    }
    return {"id": kernel, "display_name": name, **columns, "extdata": json.dumps(fields)}


@dataclass
class Seen:
    """What rows referred to.

    Attributes:
        threads: Thread ids.
        numbers: Per kind (kernel, stream, queue) its numbers.
        start_ns: Where the first row begins.
        end_ns: Where the last row ends.
        rows_before_window: Rows left out, since what made them came before the recording.
    """

    threads: set[int]
    numbers: dict[str, set[int]] = field(
        default_factory=lambda: {kind: set() for kind in ("kernel", "stream", "queue")}
    )
    start_ns: int | None = None
    end_ns: int | None = None
    rows_before_window: int = 0

    def span(self, start_ns: int, end_ns: int) -> None:
        """Widen to a row."""
        self.start_ns = start_ns if self.start_ns is None else min(start_ns, self.start_ns)
        self.end_ns = end_ns if self.end_ns is None else max(end_ns, self.end_ns)


def describe(tables: RocpdTables, spool: Spool, seen: Seen) -> None:
    """Insert the rows of all `info` tables but counters."""
    process = spool.process
    pid: int = process["pid"]
    owner = {"nid": int(NODE["id"]), "pid": pid}
    tables.insert_row("rocpd_info_node", NODE)
    start, end = seen.start_ns or 0, seen.end_ns or 0
    ends = {"init": start, "fini": end, "start": start, "end": end}
    config = json.loads(spool.names["model"].get(0, "null"))
    fields = {"model": MODEL, "seed": process["seed"], "config": config}
    if "first_call" in process:
        fields["rows_before_window"] = seen.rows_before_window
    extdata = json.dumps(fields)
    more = {"command": process["command"], "environment": json.dumps(process["environment"])}
    row = {"id": pid, "ppid": 0, **owner, **ends, **more, "extdata": extdata}
    tables.insert_row("rocpd_info_process", row)
    threads = sorted(seen.threads)
    tables.insert("rocpd_info_thread", {**owner, "ppid": 0}, {"id": threads, "tid": threads})
    for agent in (CPU, GPU):
        tables.insert_row("rocpd_info_agent", {**owner, **_agent_columns(agent)})
    tables.insert_row("rocpd_info_code_object", {**owner, **_code_object_columns()})
    kernels = spool.names["kernel"]
    for number in sorted(kernels.keys() | seen.numbers["kernel"]):
        # The profiler's own word for it.
        columns = _kernel_columns(number, kernels.get(number, "unknown_kernel"))
        tables.insert_row("rocpd_info_kernel_symbol", {**owner, **columns})
    for kind in ("stream", "queue"):
        names = _titles(kind, spool.names[kind], seen.numbers[kind])
        tables.insert(f"rocpd_info_{kind}", owner, {"id": names.keys(), "name": names.values()})


def _titles(kind: str, given: Mapping[int, str], seen: Set[int]) -> dict[int, str]:
    # The profiler has number 0 always, used or not.
    names = {**given, 0: f"Default {kind.title()}"}
    return {
        number: names.get(number, f"{kind.title()} {number}")
        for number in sorted(names.keys() | seen)
    }
