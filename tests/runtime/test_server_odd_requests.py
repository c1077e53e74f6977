"""Requests nobody should send: none of them may harm the others, or the server."""

import json
import queue

import pytest
from server_runs import server

from instrumented_runtime.server.engine_thread import EngineThread
from instrumented_runtime.server.options import options_of
from instrumented_runtime.server.serving import run
from instrumented_runtime.server.virtual_clock import Pace

LAST_NS = 10**18 - 1
# Half a character: JSON can hold it, UTF-8 cannot.
HALF = "\ud800"


@pytest.fixture(scope="module")
def running():
    with server("--max-tokens", "300") as one:
        yield one


def completed(running, **body):
    """Send JSON as Python writes it, in ASCII: an HTTP client would refuse half characters."""
    headers = {"content-type": "application/json"}
    content = json.dumps({"prompt": "a", "max_tokens": 3} | body)
    return running.client.post(f"{running.url}/v1/completions", content=content, headers=headers)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"rid": HALF}, 200),
        ({"prompt": HALF}, 200),
        ({"stop": HALF}, 200),
        ({"model": HALF}, 404),
        ({"arrival_ns": 10**18}, 400),
        ({"arrival_ns": 2**62}, 400),
        ({"arrival_ns": 10**30}, 400),
        ({"max_tokens": 10**30}, 400),
    ],
)
def test_an_odd_value_is_answered_and_the_server_goes_on(running, body, status):
    assert completed(running, **body).status_code == status
    assert completed(running).status_code == 200
    assert running.get("/health").status_code == 200


@pytest.mark.parametrize("folder", ["a\0b", "/dev/null/x"])
def test_a_folder_that_cannot_be_is_the_clients_own_error(running, folder):
    answer = running.post("/start_profile", {"output_dir": folder})
    assert answer.status_code == 400
    assert "output_dir" in answer.json()["error"]["message"]
    assert not running.get("/server_info").json()["is_profiling"]


def test_the_last_moment_that_can_be_asked_for_is_served():
    with server() as running:
        stamps = completed(running, arrival_ns=LAST_NS).json()["tracekit"]
        assert stamps["arrival_ns"] == LAST_NS
        assert LAST_NS < stamps["token_ns"][0] < LAST_NS + 20_000_000
        assert completed(running).status_code == 200


def test_at_a_slow_pace_the_thread_can_wait_for_any_moment():
    # 10^18 ns at this pace are further away than a thread can be told to wait.
    wait_s = Pace(1e-6, 0).wait_s(LAST_NS)
    with pytest.raises(queue.Empty):
        queue.SimpleQueue().get(timeout=min(wait_s, 0.01))
    assert wait_s == 3600


class Broken:
    """A machine whose clock fails once it is driven: nobody has thought of that."""

    pace, is_open = None, False

    def __init__(self):
        self.device, self.windows, self.times = self, self, iter([0])

    @property
    def now_ns(self):
        return next(self.times)


def test_whatever_fails_on_the_engines_thread_is_said_and_ends_the_server():
    failed = queue.SimpleQueue()
    thread = EngineThread(Broken, lambda _delivery: None, lambda: failed.put("said"))
    assert failed.get(timeout=10) == "said"
    assert isinstance(thread.failure, StopIteration)
    # It still takes in what comes, to say why it is not served.
    has_ended, _ = thread.stop(10)
    assert has_ended


@pytest.mark.parametrize("host", ["a..b", "x" * 90])
def test_a_host_that_is_no_name_is_said_in_one_sentence(host, capsys):
    assert run(options_of(["--host", host, "--port", "0"])) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{host}:0: cannot be listened on (")
    assert said.count("\n") == 1
