"""The recorder of the shipped server, on its virtual device: a real server, real requests."""

import contextlib
import os
import re
import sys

import httpx
import pytest
from rocm_stand_in import Launched
from watching import soon

from tracekit.capture.profilers import Asked, profilers
from tracekit.errors import BadInput, TracekitError
from tracekit.formats import read_trace

COMMAND = (sys.executable, "-m", "instrumented_runtime.server", "--port", "0")


def started(raw, command=COMMAND, **options):
    """Return the session of builtin."""
    raw.mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"]}
    return profilers()["builtin"].start(Asked(command, environment, raw, options=options))


@contextlib.contextmanager
def serving():
    """Run the shipped server until it says where it listens."""
    tree = Launched(COMMAND, {"PATH": os.environ["PATH"]})
    try:
        for line in tree.output:
            if found := re.search(rb"http://[\d.]+:\d+", line):
                tree.base_url = found[0].decode()
                break
        yield tree
    finally:
        tree.end()


def complete(server, tokens):
    """Let the server decode."""
    body = {"model": served(server), "prompt": "one two three", "max_tokens": tokens}
    answer = httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=60)
    answer.raise_for_status()


def served(server):
    """Return the name of the model."""
    return httpx.get(f"{server.base_url}/v1/models").json()["data"][0]["id"]


def test_a_window_is_one_database_and_a_killed_server_s_is_rescued(tmp_path):
    raw = tmp_path / "raw"
    session = started(raw)
    with serving() as server:
        complete(server, 4)
        assert (session.has_begun(), session.written()) == (set(), {})
        session.open_window(server)
        complete(server, 8)
        assert (session.has_begun(), session.written()) == ({server.pid}, {})
        session.close_window(server)
        [(pid, [first])] = session.written().items()
        assert pid == server.pid
        session.open_window(server)
        complete(server, 8)
        [spool] = raw.rglob("*.spool")
        soon(lambda: sum(file.stat().st_size for file in spool.glob("*.i64")) > 10_000)
        server.kill()
        with pytest.raises(TracekitError, match="did not answer"):
            session.close_window(server)
    [said] = session.rescue()
    assert re.match(r"Wrote .*\.db from \d+ rows", said)
    assert list(raw.rglob("*.spool")) == []
    [(_, files)] = session.written().items()
    assert len(files) == 2
    assert first in files
    for file in files:
        assert len(read_trace([file]).table("ops")) > 0


@pytest.mark.parametrize(
    ("command", "best"),
    [
        ("python -m instrumented_runtime.server --port 1", "builtin"),
        ("bash -c 'exec python -m instrumented_runtime.server'", "builtin"),
        ("python -m instrumented_runtime.server --device torch", "torch-profiler"),
        ("python -m instrumented_runtime.server --device=torch", "torch-profiler"),
        ("python -m sglang.launch_server", "torch-profiler"),
        ("python my_instrumented_runtime_server.py", "torch-profiler"),
    ],
)
def test_auto_takes_it_for_the_virtual_server_only(tmp_path, command, best):
    asked = Asked(
        tuple(command.split()), {"PATH": str(tmp_path), "ROCM_PATH": "/nowhere"}, tmp_path
    )
    fits = {name: profiler.fits(asked) for name, profiler in profilers().items()}
    assert max(fits, key=fits.__getitem__) == best
    if best != "builtin":
        assert fits["builtin"] == 0
        with pytest.raises(BadInput, match=r"builtin: records the virtual device of"):
            profilers()["builtin"].start(asked)


def test_an_option_that_it_does_not_have_is_refused(tmp_path):
    with pytest.raises(
        BadInput, match=r"mode: is not an option of builtin\. It knows write_timeout"
    ):
        started(tmp_path / "raw", mode="regions")
