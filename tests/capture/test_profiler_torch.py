"""PyTorch's profiler through a server's endpoints: a real torch.profiler on the CPU behind them."""

import contextlib
import gzip
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rocm_stand_in import Launched

from tracekit.capture.hooks.window import Window
from tracekit.capture.profilers import Asked, profilers
from tracekit.errors import BadInput, TracekitError
from tracekit.formats import read_trace

SERVER = Path(__file__).with_name("toy_profiled_server.py")


def asked(tmp_path, command, *, window=None, **options):
    """Return what a capture asks, to run a command."""
    raw = tmp_path / "raw"
    raw.mkdir(exist_ok=True)
    words = command.split() if isinstance(command, str) else command
    return Asked(tuple(words), {"PATH": "/usr/bin:/bin"}, raw, options=options, window=window)


def started(what):
    """Return the session of torch-profiler."""
    return profilers()["torch-profiler"].start(what)


@contextlib.contextmanager
def serving(mode):
    """Run the toy server."""
    tree = Launched([sys.executable, str(SERVER), mode], {"PATH": "/usr/bin:/bin"})
    try:
        tree.base_url = f"http://127.0.0.1:{tree.output.readline().split()[1].decode()}"
        yield tree
    finally:
        tree.end()


def test_the_server_profiles_itself_and_its_file_names_its_process(tmp_path):
    session = started(asked(tmp_path, "python -m sglang.launch_server", num_steps="5"))
    with serving("sglang") as server:
        session.open_window(server)
        assert session.has_begun() == set()
        session.close_window(server)
        file = tmp_path / "raw" / "1764.5-TP-0.trace.json.gz"
        assert session.written() == {server.pid: (file,)}
    assert json.loads((tmp_path / "raw" / "asked.txt").read_text()) == {
        "output_dir": str(tmp_path / "raw"),
        "activities": ["CPU", "GPU"],
        "with_stack": False,
        "record_shapes": False,
        "num_steps": 5,
    }
    assert "aten::mm" in gzip.decompress(file.read_bytes()).decode()
    assert read_trace([file]).table("processes")["pid"].to_list() == [server.pid]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("deaf", "/start_profile: is not there. Inject the profiler instead: --profiler-option"),
        ("unwilling", '/start_profile: answered 400: "Profiling is already in progress". See'),
        ("locked", "/start_profile: answered 401: it wants a key. Give its key under [headers]"),
        ("slow", "/start_profile: did not answer within 0.3 s. Allow more with write_timeout="),
        ("none", "raw: holds no complete trace 0.3 s after the window closed. See server.log"),
    ],
)
def test_a_server_that_does_not_profile_is_an_error_with_a_way_on(tmp_path, mode, said):
    session = started(asked(tmp_path, "sglang serve", write_timeout="0.3"))
    with serving(mode) as server, pytest.raises(TracekitError) as failed:
        session.open_window(server)
        session.close_window(server)
    assert said in str(failed.value)


def test_the_key_of_the_load_opens_the_profiler_too(tmp_path):
    headers = {"Authorization": "Bearer let me in"}
    session = started(replace(asked(tmp_path, "sglang serve"), headers=headers))
    with serving("locked") as server:
        session.open_window(server)
        session.close_window(server)
        assert list(session.written()) == [server.pid]


def test_a_server_that_has_gone_is_an_error_that_points_to_its_log(tmp_path):
    session = started(asked(tmp_path, "sglang serve"))
    with serving("none") as server:
        session.open_window(server)
        server.kill()
        with pytest.raises(TracekitError, match=r"did not answer \(.*See the last lines of server"):
            session.close_window(server)


def test_a_server_that_ends_before_its_file_is_complete_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.capture.profilers.torch_profiler._SETTLE_S", 0.1)
    session = started(asked(tmp_path, "sglang serve", write_timeout="30"))
    with serving("dies") as server:
        session.open_window(server)
        start = time.monotonic()
        with pytest.raises(TracekitError, match="holds no complete trace"):
            session.close_window(server)
    assert time.monotonic() - start < 5


def test_vllm_gets_the_flags_without_which_it_has_no_endpoints(tmp_path):
    session = started(asked(tmp_path, "vllm serve M"))
    assert session.command == (
        *("vllm", "serve", "M"),
        "--profiler-config.profiler=torch",
        f"--profiler-config.torch_profiler_dir={tmp_path / 'raw'}",
        "--profiler-config.torch_profiler_with_stack=false",
        "--profiler-config.torch_profiler_use_gzip=true",
        "--profiler-config.ignore_frontend=true",
    )
    with pytest.raises(BadInput, match="--profiler-config: is set in the command, and the traces"):
        started(asked(tmp_path, ["vllm", "serve", "M", "--profiler-config", "{}"]))


@pytest.mark.parametrize(
    ("command", "through"),
    [
        ("python -m sglang.launch_server --tp 8", "server"),
        ("/opt/venv/bin/vllm serve M", "server"),
        ("python -m vllm.entrypoints.openai.api_server", "server"),
        ("python -m instrumented_runtime.server --device torch", "server"),
        ("python my_server.py", "hook"),
        ("python -m vllm_like.serve", "hook"),
    ],
)
def test_the_hook_is_for_servers_without_known_endpoints(tmp_path, command, through):
    session = started(asked(tmp_path, command, window=Window(tmp_path / "hooks")))
    expected = {"server": (), "hook": ("torch_profiler",)}
    assert session.hooks == expected[through]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"through": "hook"}, "torch-profiler: needs hooks to get into this server"),
        ({"through": "hoook"}, "through=hoook: is not known. Write one of server, hook"),
        ({"num_steps": "0"}, "num_steps=0: is no number of steps"),
        ({"steps": "5"}, "steps: is not an option of torch-profiler. Did you mean num_steps?"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(tmp_path, options, said):
    with pytest.raises(BadInput) as refused:
        started(asked(tmp_path, "python my_server.py", **options))
    assert str(refused.value).startswith(said)
