"""SGLang as installed from its package, imported for real in a process of its own."""

import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FOREIGN = HERE.parents[1] / ".venv" / "foreign"


# One of each run of tests, for all its workers.
ADDRESS = f"\0tracekit-sglang-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"


@pytest.fixture(scope="session")
def foreign():
    """Lines to and from the process: it imports modules once and forks for each program."""
    if not (FOREIGN / "sglang").is_dir():
        pytest.skip("sglang is not in .venv/foreign; `make` puts it there")
    started, deadline = None, time.monotonic() + 60
    while (connection := connected()) is None:
        assert time.monotonic() < deadline
        if started is None:
            # Of two that start at once the second finds the address taken, and ends.
            started = subprocess.Popen(
                [sys.executable, HERE / "foreign_process.py", ADDRESS[1:]],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        time.sleep(0.02)
    with connection, connection.makefile("rw") as lines:
        yield lines
    if started:
        started.wait()


def connected():
    """Return a connection to the process, None if nobody has started it."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(ADDRESS)
    except ConnectionRefusedError:
        connection.close()
        return None
    return connection


@pytest.fixture
def run(foreign):
    """Run parts of a program where modules of SGLang are imported; returns what it puts into `result`."""

    def run(*programs, modules):
        text = "\n".join(map(textwrap.dedent, programs))
        foreign.write(json.dumps({"modules": modules, "program": text}) + "\n")
        foreign.flush()
        answer = json.loads(foreign.readline())
        assert "failed" not in answer, answer["failed"]
        return answer["result"]

    return run
