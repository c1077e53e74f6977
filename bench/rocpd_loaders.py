"""Which loader carries SQLite rows to Arrow faster: connectorx or ADBC.

    python bench/rocpd_loaders.py [--rows 2000000] [--rounds 5] [FOLDER]

Both load the columns that the reader needs of a table with that many dispatches, and the narrow
table of their events, in slices on every core, each run in a fresh process, alternating. Then each
is tried on what real files hold: nulls in the first rows, JSON columns, empty slices, values of
another type than declared, a file that may not be written.
"""

import argparse
import json
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rocpd_file import GUID, make_file

SUFFIX = "_" + GUID.replace("-", "_")
QUERIES = {
    "wide": (
        "rocpd_kernel_dispatch",
        'agent_id, kernel_id, dispatch_id, queue_id, stream_id, start, "end", event_id',
    ),
    "narrow": ("rocpd_event", "stack_id, category_id"),
}
SLICE = 1 << 18


def connectorx_load(path: Path, query: str) -> pl.DataFrame:
    """Load through connectorx; its URL is decoded once before SQLite sees the file's URI."""
    import connectorx

    uri = f"file:{quote(str(path))}?mode=ro&immutable=1"
    return pl.DataFrame(connectorx.read_sql(f"sqlite://{quote(uri)}", query, return_type="arrow"))


def adbc_load(path: Path, query: str) -> pl.DataFrame:
    """Load through ADBC with batches of 65,536 rows, its best size here, and memory mapping."""
    from adbc_driver_sqlite import dbapi

    uri = f"file:{quote(str(path))}?mode=ro&immutable=1"
    with dbapi.connect(uri) as connection, connection.cursor() as cursor:
        cursor.execute("PRAGMA mmap_size = 8589934592")
        cursor.fetchall()
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": "65536"})
        cursor.execute(query)
        return pl.DataFrame(cursor.fetch_arrow_table())


LOADERS: dict[str, Callable[[Path, str], pl.DataFrame]] = {
    "connectorx": connectorx_load,
    "adbc": adbc_load,
}


def _one(loader: str, what: str, rows: int, path: Path) -> None:
    table, columns = QUERIES[what]
    load = LOADERS[loader]
    load(path, f"SELECT {columns} FROM {table}{SUFFIX} LIMIT 1")

    def part(start: int) -> pl.DataFrame:
        where = f"id BETWEEN {start} AND {min(start + SLICE - 1, rows)}"
        return load(path, f"SELECT {columns} FROM {table}{SUFFIX} WHERE {where} ORDER BY id")

    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        frame = pl.concat(pool.map(part, range(1, rows + 1, SLICE)))
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert frame.height == rows
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_mb": after.ru_maxrss / 1024}))


def _speed(path: Path, rows: int, rounds: int) -> None:
    for what in QUERIES:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in LOADERS}
        for _ in range(rounds):
            for name, results in runs.items():
                command = [sys.executable, __file__, "--one", name, what, str(path)]
                command += ["--rows", str(rows)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                results.append(json.loads(done.stdout))
        for name, results in runs.items():
            seconds = sorted(result["seconds"] for result in results)
            cpu = statistics.median(result["cpu"] for result in results)
            peak = max(result["peak_mb"] for result in results)
            print(
                f"{what:7} {name:10} median {statistics.median(seconds):.2f} s "
                f"(min {seconds[0]:.2f}, max {seconds[-1]:.2f}, n={rounds})  "
                f"cpu {cpu:.2f} s  peak {peak:,.0f} MB"
            )


def _hazards(folder: Path) -> None:
    path = folder / "a b%20c.db"
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, n BIGINT, s TEXT, j JSONB, bad INT)"
    )
    connection.executemany(
        "INSERT INTO t (n, s, j, bad) VALUES (?, ?, ?, ?)",
        [(None, None, "{}", 1)] * 70_000 + [(5, "x", '{"a": 1}', "text")],
    )
    connection.commit()
    connection.close()
    path.chmod(0o444)
    cases = {
        "integers after 70,000 nulls": "SELECT n FROM t",
        "text after 70,000 nulls": "SELECT s FROM t",
        "a JSONB column": "SELECT j FROM t",
        "a JSONB column, no row": "SELECT j FROM t WHERE id < 0",
        "an expression, null first": "SELECT n + 1 AS n FROM t",
        "text in an INT column": "SELECT bad FROM t",
    }
    for case, query in cases.items():
        for name, load in LOADERS.items():
            try:
                frame = load(path, query)
                outcome = f"{frame.dtypes[0]}, {frame.height} rows"
            except (RuntimeError, OSError) as error:
                outcome = f"{type(error).__name__}: {str(error).splitlines()[0][:70]}"
            print(f"{case:28} {name:10} {outcome}")
    print("files left beside it:", [entry.name for entry in folder.iterdir() if entry != path])


def main() -> None:
    """Measure, then try the hazards."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(".bench"))
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        loader, what, path = arguments.one
        _one(loader, what, arguments.rows, Path(path))
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / "loaders.db"
    make_file(path, arguments.rows)
    _speed(path.absolute(), arguments.rows, arguments.rounds)
    path.unlink()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        _hazards(Path(folder).absolute())


if __name__ == "__main__":
    main()
