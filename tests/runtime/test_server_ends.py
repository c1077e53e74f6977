"""How a server ends: signals with requests under way, a step that fails, clients that go."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from engine_runs import prompt_of
from server_runs import held, server, waited_for

from tracekit.formats import read_trace, silent

# At a hundredth of wall time a verify takes 0.9 s: whatever is asked is under way for long.
SLOW = ("--pace", "0.01")


def test_a_client_that_goes_in_the_middle_of_a_stream_gives_its_slot_back():
    with server("--pace", "1") as running:
        body = {"prompt": "a", "max_tokens": 3000, "stream": True}
        url = f"{running.url}/v1/completions"
        with running.client.stream("POST", url, json=body) as answer:
            lines = (line for line in answer.iter_lines() if line)
            for _ in range(5):
                chunk = json.loads(next(lines).removeprefix("data: "))
                assert chunk["choices"][0]["finish_reason"] is None
            assert running.get("/server_info").json()["num_running"] == 1
        info = waited_for(running, num_running=0, num_waiting=0)
        assert info["num_verified_tokens"] < 3000 - 6
        # At 8.6 ms a verify nothing goes on in the background.
        verifies = info["num_verifies"]
        time.sleep(0.1)
        assert running.get("/server_info").json()["num_verifies"] == verifies


def test_a_stop_lets_requests_finish_that_can_and_completes_the_recording(tmp_path):
    with server("--grace-s", "20") as running:
        running.post("/start_profile", {"output_dir": str(tmp_path)})
        # They wait for a third: a stop lets the clock go on, since nobody is to come.
        held(running, 3)
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(running.complete, "a", 40) for _ in range(2)]
            waited_for(running, num_to_come=2)
            running.signal(signal.SIGTERM)
            answers = [one.result() for one in asked]
        status, said = running.ended()
    assert [one.status_code for one in answers] == [200, 200]
    assert answers[0].json()["usage"]["completion_tokens"] == 40
    assert status == 0
    assert f"Wrote {tmp_path / 'virtual_1.db'}" in said
    trace = read_trace([tmp_path / "virtual_1.db"], silent)
    # 39 tokens after the first of each, at most 6 of a verify.
    assert trace.table("calls").filter(kind="graph_launch").height >= 3 * 39 / 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_what_does_not_finish_with_a_clear_error(number):
    with server(*SLOW, "--grace-s", "0.3") as running:
        with ThreadPoolExecutor(2) as pool:
            whole = pool.submit(running.complete, "a", 500)
            streamed = pool.submit(running.complete, "a", 500, stream=True)
            waited_for(running, num_running=2)
            began = time.monotonic()
            running.signal(number)
            answers = whole.result(), streamed.result()
        status, said = running.ended()
    assert time.monotonic() - began < 15
    assert status == 0
    assert "2 requests are ended unfinished" in said
    assert "Traceback" not in said
    for answer in answers:
        assert "the server is stopping" in answer.text
    assert answers[0].status_code == 503


def test_while_it_stops_a_server_refuses_new_requests_and_says_so():
    with server(*SLOW, "--grace-s", "30") as running, ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(running.complete, "a", 500)
        waited_for(running, num_running=1)
        assert running.get("/health").status_code == 200
        running.signal(signal.SIGTERM)
        until = time.monotonic() + 10
        while (health := running.get("/health")).status_code == 200:
            assert time.monotonic() < until
        assert health.status_code == 503
        refused = running.post("/v1/completions", {"prompt": "a"})
        assert (refused.status_code, "stopping" in refused.text) == (503, True)
        # A second signal does not wait for the rest of the grace.
        running.signal(signal.SIGTERM)
        assert under_way.result().status_code == 503
        assert running.ended()[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_whose_reader_is_gone_completes_its_recording_all_the_same(tmp_path, number):
    command = [sys.executable, "-m", "instrumented_runtime.server", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        try:
            url = process.stdout.readline().split()[1]
            body = {"output_dir": str(tmp_path)}
            assert httpx.post(f"{url}/start_profile", json=body).status_code == 200
            httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 4})
            process.stdout.close()
            process.stderr.close()
            process.send_signal(number)
            assert process.wait(20) == 0
        finally:
            process.kill()
    assert read_trace([tmp_path / "virtual_1.db"], silent).table("ops").height > 0


PLANNED = ("--max-running", "4", "--page-size", "8", "--chunk-tokens", "640", "--max-tokens", "768")


def test_a_step_that_faults_is_said_to_all_and_ends_the_server(tmp_path):
    # The plan of the second prompt is written under the prefill of the first, which has no scratch:
    # it faults in row 0 of part 6, as the engine's own tests work out by hand.
    address = 6 * 256 * 16 * 4
    flags = ("--plan-writer", "direct", "--mix-decode", "--rocm", "10", *PLANNED)
    with server(*flags) as running:
        running.post("/start_profile", {"output_dir": str(tmp_path)})
        held(running, 2)
        now_ns = running.get("/server_info").json()["now_ns"]
        with ThreadPoolExecutor(2) as pool:
            first, second = (
                pool.submit(
                    running.complete,
                    list(prompt_of(length, number)),
                    3,
                    # The second comes in when the first one's prefill is launched.
                    arrival_ns=now_ns + 1_000 * number,
                    rid=str(number),
                    stream=bool(number),
                )
                for number, length in enumerate((100, 600), start=1)
            )
            answers = first.result(), second.result()
        health = running.get("/health")
        status, said = running.ended()
    words = f"mla_prefill_ps_asm_fwd touched address {address:#x}"
    assert [one.status_code for one in answers] == [500, 500]
    assert all(words in one.json()["error"]["message"] for one in answers)
    assert (health.status_code, words in health.json()["error"]["message"]) == (503, True)
    assert status == 1
    assert words in said
    # What was recorded until then is there.
    assert f"Wrote {tmp_path / 'virtual_1.db'}" in said
    with sqlite3.connect(f"file:{tmp_path}/virtual_1.db?mode=ro", uri=True) as connection:
        (kernels,) = connection.execute("SELECT count(*) FROM rocpd_kernel_dispatch").fetchone()
    assert kernels > 100
