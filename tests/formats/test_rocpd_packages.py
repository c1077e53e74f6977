"""Packages of rocpd files, and the files that rocprof-sys writes."""

import re

import pytest
from rocpd_files import GUID, RocpdFile, small_file

from tracekit.errors import UnreadableTrace
from tracekit.formats import read_trace, silent
from tracekit.formats.rocpd import FORMAT

OTHER_GUID = "000002aa-1111-7222-8333-444444444444"
UPID = "cc3883073c204c7da65be8c5f67fa23c"


def read(path):
    return FORMAT.read(path, silent)


def with_dispatch(path, guid=GUID):
    file = small_file(path, guid)
    file.dispatch("gemm", 1, 10, 20)
    return file.save()


def test_a_package_is_read_as_one_run(tmp_path):
    package = tmp_path / "run.rpdb"
    package.mkdir()
    with_dispatch(package / "0.db")
    with_dispatch(package / "1.db", OTHER_GUID)
    with_dispatch(package / "unlisted.db", GUID[:-1] + "e")
    (package / "index.yaml").write_text(
        "rocprofiler-sdk:\n  rocpd:\n    files:\n    - 0.db\n    - '1.db'\n    path: .\n"
        "    rocpd_package_version: '1.0'\n"
    )

    trace = read_trace([package])

    assert trace.table("processes").height == 2
    assert trace.table("ops").select("op_id", "process_id").rows() == [(0, 0), (1, 1)]
    assert trace.table("devices").height == 1


@pytest.mark.parametrize(
    ("index", "names"),
    [("    files: 0.db\n", ["0.db"]), ('    files:\n      - "*.db"\n', ["0.db", "1.db"])],
)
def test_a_package_lists_one_file_or_a_pattern(tmp_path, index, names):
    for name in ("0.db", "1.db"):
        with_dispatch(tmp_path / name)
    (tmp_path / "index.yaml").write_text(f"rocprofiler-sdk:\n  rocpd:\n{index}")

    assert FORMAT.sniff(tmp_path, b"")
    assert [path.name for path in FORMAT.members(tmp_path)] == names


def test_a_package_that_lists_a_missing_file_is_refused(tmp_path):
    (tmp_path / "index.yaml").write_text("rocprofiler-sdk:\n  rocpd:\n    files: gone.db\n")

    with pytest.raises(UnreadableTrace, match=re.escape("lists gone.db, which is not there")):
        read_trace([tmp_path])


def test_a_folder_named_rpdb_without_an_index_holds_its_db_files(tmp_path):
    package = tmp_path / "run.rpdb"
    package.mkdir()
    with_dispatch(package / "0.db")

    assert [path.name for path in FORMAT.members(package)] == ["0.db"]


@pytest.mark.parametrize("suffix", [f"_{UPID}", UPID])
def test_a_file_of_rocprof_sys_is_read(tmp_path, suffix):
    file = RocpdFile(tmp_path / "rocpd-7.db", UPID, suffix=suffix, pid=7)
    file.insert("rocpd_metadata", tag="upid", value=UPID)
    file.connection.execute(
        f"UPDATE rocpd_metadata{suffix} SET value = '{{{{guid}}}}' WHERE tag = 'guid'"
    )
    file.process()
    # Agents count from 1 there, whatever the machine calls them.
    file.agent(1, "CPU", absolute_index=0)
    file.agent(2, absolute_index=4, user_name="")
    file.queue(1, "0x55aa")
    file.stream(1, "0x77bb")
    file.call("hipLaunchKernel", 3, 10, 20, category="rocm_hip_api")
    file.dispatch("gemm", 3, 30, 40, queue=1, stream=1, category="rocm_kernel_dispatch")
    file.call("hipMemcpy", 4, 50, 60, category="rocm_hip_api")
    file.memory_copy("MEMORY_COPY_HOST_TO_DEVICE", 4, 55, 59, 64, dst=2, src=1, queue_id=0)
    file.call("roctx text", 5, 5, 45, category="rocm_marker_api")
    file.call("main", 6, 1, 99, category="host")

    trace = read(file.save())

    assert trace.table("ops").select("kind", "call_id", "queue_id", "device_id").rows() == [
        ("kernel", 0, 1, 0),
        ("copy", 1, None, 0),
    ]
    assert trace.table("devices").select("index", "key").rows() == [(4, "machine-a:4")]
    assert trace.table("ranges").select("kind", "text", "parent_id").rows() == [
        ("frame", "main", None),
        ("marker", "roctx text", 0),
    ]
