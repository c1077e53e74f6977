"""The standard views of a rocpd file: tables joined to what people and ROCm's tools read.

All joins are within one guid, so that the views stay right when files of several processes are
merged. Names and order of the columns are those of ROCm 7; `top` and `top_kernels` are in
microseconds, all else in nanoseconds.
"""


def _join(table: str, alias: str, key: str, kind: str = "JOIN") -> str:
    """Join a table by its id; `key` is `alias.column` of a table already there."""
    holder = key.split(".")[0]
    return f"\n    {kind} {table} {alias} ON {alias}.id = {key} AND {alias}.guid = {holder}.guid"


def _left(table: str, alias: str, key: str) -> str:
    return _join(table, alias, key, "LEFT JOIN")


_PROCESS_OF = "\n    JOIN rocpd_info_process p ON p.id = {0}.pid AND p.guid = {0}.guid"
_THREAD_OF = "\n    JOIN rocpd_info_thread t ON t.id = {0}.tid AND t.guid = {0}.guid"
_CATEGORY = _left("rocpd_string", "category", "e.category_id")
_STACK = "e.stack_id, e.parent_stack_id, e.correlation_id AS corr_id"
_HOST_EVENT = f"{_STACK}, e.extdata, e.call_stack, e.line_info"
_SYSTEM = (
    "n.id AS nid, n.machine_id, n.system_name, n.hostname, n.release AS system_release,\n"
    "    n.version AS system_version"
)


def _agent(alias: str, prefix: str) -> str:
    return (
        f"{alias}.absolute_index AS {prefix}_abs_index, {alias}.logical_index AS "
        f"{prefix}_log_index,\n    {alias}.type_index AS {prefix}_type_index, {alias}.type AS "
        f"{prefix}_type"
    )


_SAMPLED = (
    "\nFROM rocpd_sample s"
    + _join("rocpd_track", "k", "s.track_id")
    + _join("rocpd_event", "e", "s.event_id")
    + _CATEGORY
    + _left("rocpd_string", "name", "k.name_id")
    + _PROCESS_OF.format("k")
    + _THREAD_OF.format("k")
)
_OF_MEMORY = (
    _join("rocpd_event", "e", "m.event_id")
    + _CATEGORY
    + _PROCESS_OF.format("m")
    + _THREAD_OF.format("m")
)
_GPU_AND_COPY_TIME = """
        SELECT guid, agent_id, start, "end" FROM rocpd_kernel_dispatch
        UNION ALL
        SELECT guid, dst_agent_id, start, "end" FROM rocpd_memory_copy"""

STANDARD_VIEWS = {
    "code_objects": """
SELECT c.id, c.guid, c.nid, p.pid, a.absolute_index AS agent_abs_index, c.uri, c.load_base,
    c.load_size, c.load_delta, c.storage_type AS storage_type_str,
    json_extract(c.extdata, '$.size') AS code_object_size,
    json_extract(c.extdata, '$.storage_type') AS storage_type,
    json_extract(c.extdata, '$.memory_base') AS memory_base,
    json_extract(c.extdata, '$.memory_size') AS memory_size
FROM rocpd_info_code_object c"""
    + _join("rocpd_info_agent", "a", "c.agent_id")
    + _PROCESS_OF.format("c"),
    "kernel_symbols": """
SELECT s.id, s.guid, s.nid, p.pid, s.code_object_id, s.kernel_name, s.display_name,
    s.kernel_object, s.kernarg_segment_size, s.kernarg_segment_alignment, s.group_segment_size,
    s.private_segment_size, s.sgpr_count, s.arch_vgpr_count, s.accum_vgpr_count,
    json_extract(s.extdata, '$.size') AS kernel_symbol_size,
    json_extract(s.extdata, '$.kernel_id') AS kernel_id,
    json_extract(s.extdata, '$.kernel_code_entry_byte_offset') AS kernel_code_entry_byte_offset,
    json_extract(s.extdata, '$.formatted_kernel_name') AS formatted_kernel_name,
    json_extract(s.extdata, '$.demangled_kernel_name') AS demangled_kernel_name,
    json_extract(s.extdata, '$.truncated_kernel_name') AS truncated_kernel_name,
    json_extract(s.extdata, '$.kernel_address.handle') AS kernel_address
FROM rocpd_info_kernel_symbol s"""
    + _PROCESS_OF.format("s"),
    "processes": f"""
SELECT {_SYSTEM},
    p.guid, p.ppid, p.pid, p.init, p.start, p."end", p.fini, p.command
FROM rocpd_info_process p"""
    + _join("rocpd_info_node", "n", "p.nid"),
    "threads": f"""
SELECT {_SYSTEM},
    p.guid, p.ppid, p.pid, t.tid, t.start, t."end", t.name
FROM rocpd_info_thread t"""
    + _PROCESS_OF.format("t")
    + _join("rocpd_info_node", "n", "t.nid"),
    "regions": f"""
SELECT r.id, r.guid, category.string AS category, name.string AS name, r.nid, p.pid, t.tid,
    r.start, r."end", r."end" - r.start AS duration, r.event_id,
    {_HOST_EVENT}
FROM rocpd_region r"""
    + _join("rocpd_event", "e", "r.event_id")
    + _CATEGORY
    + _join("rocpd_string", "name", "r.name_id")
    + _PROCESS_OF.format("r")
    + _THREAD_OF.format("r"),
    "region_args": """
SELECT r.id, r.guid, r.nid, p.pid, a.type, a.name, a.value
FROM rocpd_region r
    JOIN rocpd_arg a ON a.event_id = r.event_id AND a.guid = r.guid"""
    + _PROCESS_OF.format("r"),
    "samples": f"""
SELECT s.id, s.guid, category.string AS category, name.string AS name, k.nid, p.pid, t.tid,
    s.timestamp, s.event_id,
    {_HOST_EVENT}"""
    + _SAMPLED,
    "sample_regions": f"""
SELECT s.id, s.guid, category.string AS category, name.string AS name, k.nid, p.pid, t.tid,
    s.timestamp AS start, s.timestamp AS "END", 0 AS duration, s.event_id,
    {_HOST_EVENT}"""
    + _SAMPLED,
    "regions_and_samples": "\nSELECT * FROM regions UNION ALL SELECT * FROM sample_regions",
    "kernels": f"""
SELECT d.id, d.guid, t.tid, category.string AS category, region.string AS region,
    s.display_name AS name, d.nid, p.pid,
    {_agent("a", "agent")},
    s.code_object_id, d.kernel_id, d.dispatch_id, d.stream_id, d.queue_id, q.name AS queue,
    st.name AS stream, d.start, d."end", d."end" - d.start AS duration, d.grid_size_x AS grid_x,
    d.grid_size_y AS grid_y, d.grid_size_z AS grid_z, d.workgroup_size_x AS workgroup_x,
    d.workgroup_size_y AS workgroup_y, d.workgroup_size_z AS workgroup_z,
    d.group_segment_size AS lds_size, d.private_segment_size AS scratch_size,
    s.arch_vgpr_count AS vgpr_count, s.accum_vgpr_count, s.sgpr_count,
    s.group_segment_size AS static_lds_size, s.private_segment_size AS static_scratch_size,
    {_STACK}
FROM rocpd_kernel_dispatch d"""
    + _join("rocpd_info_agent", "a", "d.agent_id")
    + _join("rocpd_event", "e", "d.event_id")
    + _CATEGORY
    + _join("rocpd_string", "region", "d.region_name_id")
    + _join("rocpd_info_kernel_symbol", "s", "d.kernel_id")
    + _left("rocpd_info_stream", "st", "d.stream_id")
    + _left("rocpd_info_queue", "q", "d.queue_id")
    + _PROCESS_OF.format("d")
    + _THREAD_OF.format("d"),
    "pmc_info": """
SELECT c.id, c.guid, c.nid, p.pid, a.absolute_index AS agent_abs_index, c.is_constant,
    c.is_derived, c.name, c.description, c.block, c.expression
FROM rocpd_info_pmc c"""
    + _join("rocpd_info_agent", "a", "c.agent_id")
    + _PROCESS_OF.format("c"),
    "pmc_events": """
SELECT v.id, v.guid, v.pmc_id, e.id AS event_id, category.string AS category,
    s.display_name AS name, d.nid, p.pid, d.dispatch_id, d.start, d."end",
    d."end" - d.start AS duration, c.name AS counter_name, v.value AS counter_value
FROM rocpd_pmc_event v"""
    + _join("rocpd_info_pmc", "c", "v.pmc_id")
    + _join("rocpd_event", "e", "v.event_id")
    + _CATEGORY
    + "\n    JOIN rocpd_kernel_dispatch d ON d.event_id = v.event_id AND d.guid = v.guid"
    + _left("rocpd_info_kernel_symbol", "s", "d.kernel_id")
    + _PROCESS_OF.format("d"),
    "events_args": """
SELECT e.id AS event_id, category.string AS category, e.stack_id, e.parent_stack_id,
    e.correlation_id, a.position AS arg_position, a.type AS arg_type, a.name AS arg_name,
    a.value AS arg_value, e.call_stack, e.line_info, a.extdata
FROM rocpd_arg a"""
    + _join("rocpd_event", "e", "a.event_id")
    + _CATEGORY,
    "stream_args": """
SELECT a.id AS argument_id, a.event_id, a.position AS arg_position, a.type AS arg_type,
    a.value AS arg_value, json_extract(a.extdata, '$.stream_id') AS stream_id, st.nid, p.pid,
    st.name AS stream_name, st.extdata
FROM rocpd_arg a
    JOIN rocpd_info_stream st ON st.id = json_extract(a.extdata, '$.stream_id')
        AND st.guid = a.guid"""
    + _PROCESS_OF.format("st")
    + "\nWHERE a.name = 'stream'",
    "memory_copies": f"""
SELECT m.id, m.guid, category.string AS category, m.nid, p.pid, t.tid, m.start, m."end",
    m."end" - m.start AS duration, name.string AS name, region.string AS region_name,
    m.stream_id, m.queue_id, st.name AS stream_name, q.name AS queue_name, m.size,
    dst.name AS dst_device, {_agent("dst", "dst_agent")}, m.dst_address,
    src.name AS src_device, {_agent("src", "src_agent")}, m.src_address,
    {_STACK}
FROM rocpd_memory_copy m"""
    + _join("rocpd_string", "name", "m.name_id")
    + _left("rocpd_string", "region", "m.region_name_id")
    + _join("rocpd_info_agent", "dst", "m.dst_agent_id")
    + _join("rocpd_info_agent", "src", "m.src_agent_id")
    + _left("rocpd_info_queue", "q", "m.queue_id")
    + _left("rocpd_info_stream", "st", "m.stream_id")
    + _OF_MEMORY,
    "memory_allocations": f"""
SELECT m.id, m.guid, category.string AS category, m.nid, p.pid, t.tid, m.start, m."end",
    m."end" - m.start AS duration, m.type, m.level, a.name AS agent_name,
    {_agent("a", "agent")},
    m.address, m.size, m.queue_id, q.name AS queue_name, m.stream_id, st.name AS stream_name,
    {_STACK}
FROM rocpd_memory_allocate m"""
    + _left("rocpd_info_agent", "a", "m.agent_id")
    + _left("rocpd_info_queue", "q", "m.queue_id")
    + _left("rocpd_info_stream", "st", "m.stream_id")
    + _OF_MEMORY,
    "scratch_memory": f"""
SELECT m.id, m.guid, m.nid, p.pid, m.type AS operation, a.name AS agent_name,
    {_agent("a", "agent")},
    m.queue_id, t.tid, json_extract(m.extdata, '$.flags') AS alloc_flags, m.start, m."end",
    m."end" - m.start AS duration, m.size, m.address, e.correlation_id,
    {_STACK}, category.string AS category, e.extdata AS event_extdata
FROM rocpd_memory_allocate m"""
    + _left("rocpd_info_agent", "a", "m.agent_id")
    + _OF_MEMORY
    + "\nWHERE m.level = 'SCRATCH' ORDER BY m.start",
    "counters_collection": f"""
SELECT min(v.id) AS id, v.guid, d.dispatch_id, d.kernel_id, e.id AS event_id, e.correlation_id,
    e.stack_id, e.parent_stack_id, p.pid, t.tid, d.agent_id,
    {_agent("a", "agent")},
    d.queue_id, d.grid_size_x, d.grid_size_y, d.grid_size_z,
    d.grid_size_x * d.grid_size_y * d.grid_size_z AS grid_size, s.display_name AS kernel_name,
    region.string AS kernel_region, d.workgroup_size_x, d.workgroup_size_y, d.workgroup_size_z,
    d.workgroup_size_x * d.workgroup_size_y * d.workgroup_size_z AS workgroup_size,
    d.group_segment_size AS lds_block_size, d.private_segment_size AS scratch_size,
    s.arch_vgpr_count AS vgpr_count, s.accum_vgpr_count, s.sgpr_count, c.name AS counter_name,
    c.symbol AS counter_symbol, c.component, c.description, c.block, c.expression, c.value_type,
    c.id AS counter_id, sum(v.value) AS value, d.start, d."end", c.is_constant, c.is_derived,
    d."end" - d.start AS duration, category.string AS category, d.nid, e.extdata,
    s.code_object_id
FROM rocpd_pmc_event v"""
    + _join("rocpd_info_pmc", "c", "v.pmc_id")
    + _join("rocpd_event", "e", "v.event_id")
    + _CATEGORY
    + "\n    JOIN rocpd_kernel_dispatch d ON d.event_id = v.event_id AND d.guid = v.guid"
    + _join("rocpd_info_agent", "a", "d.agent_id")
    + _join("rocpd_info_kernel_symbol", "s", "d.kernel_id")
    + _left("rocpd_string", "region", "d.region_name_id")
    + _PROCESS_OF.format("d")
    + _THREAD_OF.format("d")
    + "\nGROUP BY v.guid, d.dispatch_id, c.name, d.agent_id",
    "top_kernels": """
SELECT s.display_name AS name, count(*) AS total_calls,
    sum(d."end" - d.start) / 1000.0 AS total_duration,
    sum(d."end" - d.start) / count(*) / 1000.0 AS average,
    sum(d."end" - d.start) * 100.0 / (SELECT sum("end" - start) FROM rocpd_kernel_dispatch)
        AS percentage
FROM rocpd_kernel_dispatch d"""
    + _join("rocpd_info_kernel_symbol", "s", "d.kernel_id")
    + "\nGROUP BY s.display_name ORDER BY total_duration DESC",
    "busy": f"""
WITH ops AS ({_GPU_AND_COPY_TIME}),
    wall AS (SELECT max("end") - min(start) AS WallTime FROM ops),
    agents AS (SELECT guid, agent_id, sum("end" - start) AS GpuTime FROM ops GROUP BY 1, 2)
SELECT g.agent_id, a.type, g.GpuTime, wall.WallTime, g.GpuTime * 1.0 / wall.WallTime AS Busy
FROM agents g CROSS JOIN wall"""
    + _join("rocpd_info_agent", "a", "g.agent_id"),
    "top": """
WITH spans AS (
        SELECT s.display_name AS name, d."end" - d.start AS ns FROM rocpd_kernel_dispatch d"""
    + _join("rocpd_info_kernel_symbol", "s", "d.kernel_id")
    + """
        UNION ALL SELECT s.string, m."end" - m.start FROM rocpd_memory_copy m"""
    + _join("rocpd_string", "s", "m.name_id")
    + """
        UNION ALL SELECT s.string, r."end" - r.start FROM rocpd_region r"""
    + _join("rocpd_string", "s", "r.name_id")
    + """)
SELECT name, count(*) AS total_calls, sum(ns) / 1000.0 AS total_duration,
    sum(ns) / count(*) / 1000.0 AS average,
    sum(ns) * 100.0 / (SELECT sum(ns) FROM spans) AS percentage
FROM spans GROUP BY name ORDER BY total_duration DESC""",
}
