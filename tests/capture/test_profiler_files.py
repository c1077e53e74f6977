"""When a trace file that another process writes counts as complete."""

import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from rocm_stand_in import asked, install, started
from watching import soon

from tracekit.capture.trace_files import Looks, is_held, read_database, read_kineto
from tracekit.errors import UnreadableTrace
from tracekit.formats import read_trace

sys.path.append(str(Path(__file__).resolve().parents[1] / "formats"))
from rocpd_files import small_file


def test_a_database_counts_when_its_schema_is_whole_and_no_transaction_is_open(tmp_path):
    file = small_file(tmp_path / "1_results.db", version="3.0.4")
    assert read_database(file.path) is None  # its views come last
    file.save()
    assert read_database(file.path) == "3.0.4"
    writer = sqlite3.connect(file.path)
    writer.execute("INSERT INTO rocpd_metadata_" + file.suffix[1:] + " (tag, value) VALUES (1, 2)")
    assert file.path.with_name("1_results.db-journal").exists()
    assert read_database(file.path) is None
    writer.commit()
    assert read_database(file.path) == "3.0.4"
    writer.close()
    for name, content in (("half", file.path.read_bytes()[:5000]), ("empty", b""), ("text", b"x")):
        (tmp_path / name).write_bytes(content)
        assert read_database(tmp_path / name) is None


def test_looking_at_a_database_takes_no_lock_from_its_writer(tmp_path):
    path = small_file(tmp_path / "1_results.db").save()
    writer = sqlite3.connect(path, isolation_level=None, timeout=0)
    writer.execute("BEGIN EXCLUSIVE")
    assert read_database(path) == "3"
    writer.execute("CREATE TABLE more (x)")
    writer.execute("COMMIT")
    writer.close()


def test_a_database_that_its_process_holds_open_is_not_written(tmp_path):
    session = started(asked(install(tmp_path / "rocm"), tmp_path, ["true"], has_window=False))
    path = tmp_path / "raw" / "host" / f"{os.getpid()}_results.db"
    path.parent.mkdir()
    shutil.move(small_file(tmp_path / "x.db").save(), path)
    with path.open("rb"):
        assert is_held(path, os.getpid())
        # Long enough to have come to rest.
        soon(lambda: session._looks.complete(path))
        assert session.written() == {}
    assert session.written() == {os.getpid(): (path,)}
    assert not is_held(path, 1 << 29)


def test_a_half_that_a_dead_writer_left_is_undone_so_that_the_others_read(tmp_path):
    session = started(asked(install(tmp_path / "rocm"), tmp_path, ["true"], has_window=False))
    path = tmp_path / "raw" / "host" / "71_results.db"
    path.parent.mkdir()
    file = small_file(tmp_path / "x.db")
    shutil.move(file.save(), path)
    shutil.copy(path, path.with_name("72_results.db"))
    # So many rows that some are in the file before its writer dies, or commits.
    rows = "WITH RECURSIVE row(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM row WHERE n < 20000)"
    insert = (
        f"INSERT INTO rocpd_metadata{file.suffix} (tag, value) {rows} SELECT 'half', n FROM row"
    )
    dies = (
        "import os, sqlite3, sys; file = sqlite3.connect(sys.argv[1])\n"
        "file.execute('PRAGMA cache_size = 1'); file.execute(sys.argv[2]); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", dies, path, insert], check=False)
    with pytest.raises(UnreadableTrace, match="still being written"):
        read_trace([tmp_path / "raw"])
    living = sqlite3.connect(path.with_name("72_results.db"))
    living.execute(insert)
    said = "ended while rocprofv3 wrote its file, which holds what it had committed"
    assert session.rescue() == [f"process 71 {said}"]
    living.commit()
    living.close()
    assert read_trace([tmp_path / "raw"]).table("processes").height == 2


def test_a_trace_counts_when_its_gzip_trailer_and_its_last_brace_are_there(tmp_path):
    rows = {"name": "process_labels", "ph": "M", "pid": 71, "args": {"labels": "GPU 0"}}
    whole = gzip.compress(
        json.dumps(
            {"traceEvents": [rows, rows | {"pid": 4242, "args": {"labels": "CPU"}}]}
        ).encode()
    )
    cases = {
        "whole.json.gz": (whole, 4242),
        "no_trailer.json.gz": (whole[:-4], None),
        "half.json.gz": (whole[: len(whole) // 2], None),
        "no_brace.json.gz": (gzip.compress(b'{"traceEvents": ['), None),
        "no_process.json.gz": (gzip.compress(b'{"traceEvents": []}\n'), 0),
        "plain.json": (gzip.decompress(whole), 4242),
        "empty.json.gz": (b"", None),
    }
    for name, (content, _) in cases.items():
        (tmp_path / name).write_bytes(content)
    assert {name: read_kineto(tmp_path / name) for name in cases} == {
        name: expected for name, (_, expected) in cases.items()
    }


def test_a_file_counts_only_after_it_has_come_to_rest(tmp_path):
    file, reads = tmp_path / "trace", []
    looks = Looks(lambda path: reads.append(path) or len(reads), settle_s=0.2)
    assert looks.complete(file) is None
    for size in range(1, 4):
        file.write_bytes(bytes(size))
        assert looks.complete(file) is None
    assert reads == []
    assert soon(lambda: looks.complete(file)) == 1
    assert looks.complete(file) == 1
    file.write_bytes(bytes(9))
    assert looks.complete(file) is None
