"""Real rocpd files, read in place: our tables against plain SQL on the same file."""

import sqlite3

import pytest

from tracekit.formats import identify, silent
from tracekit.formats.rocpd import FORMAT


@pytest.fixture
def mi300x(real_traces):
    path = real_traces / "rocpd" / "mi300x_rocm7.1_hip_args_redacted.db"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    return path


def sql(path, query):
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_calls_and_ops_of_the_mi300x_file_are_all_there(mi300x):
    trace = FORMAT.read(mi300x, silent)

    assert trace.table("calls").height == 629
    assert trace.table("ops").height == 151
    regions = sql(
        mi300x,
        "SELECT S.string, R.start, R.end, T.tid FROM rocpd_region R "
        "JOIN rocpd_string S ON S.id = R.name_id JOIN rocpd_info_thread T ON T.id = R.tid "
        "ORDER BY R.id",
    )
    calls = trace.table("calls").select("name", "start_ns", "end_ns", "thread_id")
    assert calls.rows() == regions


def test_kernels_of_the_mi300x_file_join_the_calls_that_sql_joins(mi300x):
    trace = FORMAT.read(mi300x, silent)

    expected = sql(
        mi300x,
        "SELECT K.display_name, D.start, D.end, RS.string, R.start FROM rocpd_kernel_dispatch D "
        "JOIN rocpd_event E ON E.id = D.event_id "
        "JOIN rocpd_event C ON C.stack_id = E.stack_id AND C.id <> E.id "
        "JOIN rocpd_region R ON R.event_id = C.id JOIN rocpd_string RS ON RS.id = R.name_id "
        "JOIN rocpd_info_kernel_symbol K ON K.id = D.kernel_id ORDER BY D.id",
    )
    calls = trace.table("calls").select("call_id", call="name", called_ns="start_ns")
    joined = trace.table("ops").join(calls, on="call_id", maintain_order="left")
    assert joined.select("name", "start_ns", "end_ns", "call", "called_ns").rows() == expected
    assert len(expected) == 151


def test_arguments_of_the_mi300x_file_are_those_that_sql_finds(mi300x):
    trace = FORMAT.read(mi300x, silent)

    copies = sql(
        mi300x,
        "SELECT max(CASE A.name WHEN 'dst' THEN A.value END), "
        "max(CASE A.name WHEN 'src' THEN A.value END), "
        "max(CASE A.name WHEN 'sizeBytes' THEN A.value END) FROM rocpd_arg A "
        "JOIN rocpd_region R ON R.event_id = A.event_id "
        "JOIN rocpd_string S ON S.id = R.name_id AND S.string = 'hipMemcpy' "
        "GROUP BY R.id ORDER BY R.id",
    )
    found = trace.table("copies").select("dst_address", "src_address", "copied_bytes").rows()
    assert found == [(int(dst, 16), int(src, 16), int(size)) for dst, src, size in copies]
    assert len(found) == 3
    events = sql(
        mi300x,
        "SELECT A.value FROM rocpd_arg A JOIN rocpd_region R ON R.event_id = A.event_id "
        "WHERE A.name = 'event' AND A.type = 'ihipEvent_t*' ORDER BY R.id",
    )
    keys = trace.table("calls")["event_key"].drop_nulls().to_list()
    assert keys == [int(value, 16) for (value,) in events]


def test_identity_of_the_mi300x_file(mi300x):
    trace = FORMAT.read(mi300x, silent)

    assert trace.table("devices").select("index", "arch").rows() == [
        (index, "gfx942") for index in range(2, 10)
    ]
    # All eight boards have the same number in the column `uuid`; none may be merged by it.
    assert trace.table("devices")["key"].n_unique() == 8
    assert trace.table("processes")["collected"].to_list() == [["ops", "calls", "call_arguments"]]
    assert trace.table("streams")["flags"].to_list() == ["null"]
    everything = str([trace.table(name).to_dicts() for name in trace.frames]) + str(trace.notes)
    assert "API_TOKEN" not in everything
    assert "XXXXXXXX" not in everything


def test_the_kernel_only_file_has_ops_without_calls(real_traces):
    path = real_traces / "rocpd" / "flydsl_gfx1250_146104_results.db"
    trace = FORMAT.read(path, silent)

    ops = trace.table("ops")
    expected = sql(path, "SELECT start, end FROM rocpd_kernel_dispatch ORDER BY id")
    assert ops.select("start_ns", "end_ns").rows() == expected
    assert ops["call_id"].null_count() == 5
    assert "rocpd.calls-not-collected" in {note.code for note in trace.notes}


def test_the_hand_made_file_without_events_is_read_in_part_and_says_so(real_traces):
    path = real_traces / "rocpd" / "SYNTHETIC_babeltrace_test_rocm_database.db"
    trace = FORMAT.read(path, silent)

    assert trace.table("ops")["kind"].to_list() == ["copy", "kernel", "kernel", "copy"]
    assert trace.table("ops")["call_id"].null_count() == 4
    assert trace.table("ranges")["text"].to_list() == ["main_region", "gpu_computation"]
    assert "rocpd.tables-missing" in {note.code for note in trace.notes}


def test_every_real_rocpd_file_is_claimed_and_no_other_database_is(real_traces):
    for path in (real_traces / "rocpd").glob("*.db"):
        assert identify(path).name == "rocpd"
    others = [*(real_traces / "rpd").iterdir(), *(real_traces / "nsys").iterdir()]
    assert others
    for path in others:
        assert not FORMAT.sniff(path, path.read_bytes()[:4096])


def test_our_tables_agree_with_the_views_of_rocms_own_package(mi300x):
    rocpd = pytest.importorskip("rocpd", reason="ROCm's rocpd package is not installed")
    connection = rocpd.connect([str(mi300x)])
    kernels = connection.execute("SELECT name, start, end FROM kernels ORDER BY id").fetchall()
    regions = connection.execute(
        "SELECT name, start, end, tid FROM regions_and_samples ORDER BY id"
    ).fetchall()

    trace = FORMAT.read(mi300x, silent)

    assert trace.table("ops").select("name", "start_ns", "end_ns").rows() == kernels
    calls = trace.table("calls").select("name", "start_ns", "end_ns", "thread_id")
    assert calls.rows() == regions


def test_our_tables_agree_with_the_views_in_the_file(mi300x):
    trace = FORMAT.read(mi300x, silent)

    kernels = sql(mi300x, "SELECT name, start, end, agent_abs_index FROM kernels ORDER BY id")
    devices = trace.table("devices").select("device_id", "index")
    ops = trace.table("ops").join(devices, on="device_id", maintain_order="left")
    assert ops.select("name", "start_ns", "end_ns", "index").rows() == kernels
