"""A large rocpd file of schema 3, made from nothing but counting: what the benchmarks read."""

import sqlite3
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "formats"))
from rocpd_files import GUID, create_tables, create_views

_CALLS = ("hipLaunchKernel", "hipEventRecord", "hipStreamWaitEvent", "hipMemcpyAsync")
_KERNELS = 300
_CYCLE = 400
_STREAMS = 8


def make_file(path: Path, dispatches: int) -> None:
    """Write a rocpd file with this many dispatches and as many API calls, two events for each pair.

    Of 400 calls one records an event, one waits for it on the next stream, one copies, one
    synchronises; all others launch a kernel. Eight streams share four queues.
    """
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = off")
    connection.execute("PRAGMA synchronous = off")
    suffix = create_tables(connection)
    _insert_info(connection, suffix)
    for statement in _statements(suffix, dispatches):
        connection.execute(statement)
    create_views(connection, [suffix])
    connection.commit()
    connection.close()


def _insert_info(connection: sqlite3.Connection, suffix: str) -> None:
    texts = ["HIP_RUNTIME_API_EXT", "KERNEL_DISPATCH", *_CALLS, "hipEventSynchronize", ""]
    texts += [f"text {number}" for number in range(1000)]
    rows = {
        "rocpd_metadata(tag, value)": [("schema_version", "3"), ("guid", GUID)],
        "rocpd_string(string)": [(text,) for text in texts],
        "rocpd_info_node(id, hash, machine_id, hostname)": [(1, 1, "machine", "node")],
        "rocpd_info_process(id, nid, pid, command)": [(28, 1, 28, "bench")],
        "rocpd_info_thread(id, nid, pid, tid)": [(28, 1, 28, 28)],
        "rocpd_info_agent(id, nid, pid, type, absolute_index, type_index, name, product_name)": [
            (2, 1, 28, "GPU", 2, 0, "gfx942", "AMD Instinct MI300X")
        ],
        "rocpd_info_queue(id, nid, pid, name)": [(q, 1, 28, f"Queue {q}") for q in range(16, 20)],
        "rocpd_info_stream(id, nid, pid, name)": [
            (s, 1, 28, f"Stream {s}") for s in range(_STREAMS)
        ],
        "rocpd_info_kernel_symbol(id, nid, pid, code_object_id, display_name)": [
            (k, 1, 28, 1, f"void kernel_{k}<bfloat16, 128>(Arguments)") for k in range(_KERNELS)
        ]
        + [(_KERNELS, 1, 28, 1, "__amd_rocclr_copyBuffer")],
    }
    for target, values in rows.items():
        table, columns = target.split("(")
        marks = ", ".join("?" for _ in values[0])
        connection.executemany(f'INSERT INTO "{table}{suffix}" ({columns} VALUES ({marks})', values)


def _statements(suffix: str, count: int) -> list[str]:
    series = (
        f"WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < {count}) INSERT"
    )
    place = f"i % {_CYCLE}"
    stream = f"(i / 50) % {_STREAMS}"
    start = "1071423126196616 + i * 2000"
    # Of the four calls that are no launches only the copy has an op; the others' go to a launch.
    stack = f"CASE WHEN {place} IN (1, 2, 4) THEN i - {place} + 5 ELSE i END"
    kernel = f"CASE WHEN {place} = 3 THEN {_KERNELS} ELSE i % {_KERNELS} END"
    name = f"CASE {place} WHEN 1 THEN 4 WHEN 2 THEN 5 WHEN 3 THEN 6 WHEN 4 THEN 7 ELSE 3 END"
    pointer = f"printf('0x7f20%04x0', ({stream} + ({place} = 2)) % {_STREAMS} + 1)"
    event = f"printf('0x5581%06x0', i / {_CYCLE} % 64)"
    arguments = (
        (1, "event", event),
        (1, "stream", pointer),
        (2, "stream", pointer),
        (2, "event", event),
        (2, "flags", "'0'"),
        (3, "dst", "printf('0x7eda%08x', i)"),
        (3, "src", "printf('0x7f1b%08x', i)"),
        (3, "sizeBytes", "'4096'"),
        (3, "kind", "'HostToDevice'"),
        (3, "stream", pointer),
        (4, "event", event),
    )
    return [
        f"{series} INTO rocpd_event{suffix}(category_id, stack_id, parent_stack_id, "
        "correlation_id) SELECT 1, i, 0, 0 FROM k",
        f"{series} INTO rocpd_region{suffix}(nid, pid, tid, start, end, name_id, event_id) "
        f"SELECT 1, 28, 28, {start}, {start} + 1500, {name}, i FROM k",
        f"{series} INTO rocpd_event{suffix}(category_id, stack_id, parent_stack_id, "
        f"correlation_id) SELECT 2, {stack}, {stack}, 0 FROM k",
        f"{series} INTO rocpd_kernel_dispatch{suffix}(nid, pid, tid, agent_id, kernel_id, "
        "dispatch_id, queue_id, stream_id, start, end, private_segment_size, "
        "group_segment_size, region_name_id, event_id) SELECT 1, 28, 28, 2, "
        f"{kernel}, i, 16 + {stream} % 4, {stream}, {start} + 5000, {start} + 6800, 0, 65536, 8, "
        f"{count} + i FROM k",
        *(
            f"{series} INTO rocpd_arg{suffix}(event_id, position, type, name, value) "
            f"SELECT i, 0, 'T*', '{role}', {value} FROM k WHERE {place} = {at}"
            for at, role, value in arguments
        ),
    ]
