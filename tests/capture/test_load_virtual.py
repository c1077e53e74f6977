"""Load in the time of a server that runs on a model: its stamps, held clock, repeatable figures."""

import itertools
import re
import subprocess
import sys
from contextlib import contextmanager

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from sse_server import DONE, Answer, event, serving

from tracekit.capture.load.client_metrics import client_metrics
from tracekit.capture.load.driving import Load, drive

INFO = {"clock": "virtual", "now_ns": 1000, "num_verifies": 0, "num_verified_tokens": 0}


def stamped(arrival_ns, *token_ns):
    chunks = [event(tracekit={"arrival_ns": arrival_ns, "token_ns": list(ns)}) for ns in token_ns]
    end = event(
        choices=[{"text": "", "finish_reason": "length"}],
        usage={"completion_tokens": sum(map(len, token_ns)), "prompt_tokens": 5},
        tracekit={"arrival_ns": arrival_ns, "token_ns": [], "num_verifies": 2, "cached_tokens": 3},
    )
    return Answer([(0, b"".join(chunks) + end + DONE)])


def holds(server):
    return [body["hold_below"] for _, path, body, _ in server.requests if path == "/virtual_clock"]


def test_the_stamps_of_the_server_are_the_times_one_chunk_a_step():
    # The wires joined two steps into one event, and cut one step into two.
    answer = stamped(1000, [1100], [1200, 1200, 1300], [1300, 1400])
    load = Load(requests=1, bursts=1, prompt_tokens=5)
    pages = {"server_info": INFO, "virtual_clock": b"{}"}
    with serving(lambda _n, _b: answer, **pages) as server:
        driven = drive(load, server.url, phase="traced")
    (row,) = driven.records.to_dicts()
    assert (driven.clock, client_metrics(driven)["clock"]) == ("virtual", "virtual")
    assert row["chunk_ns"] == [1100, 1200, 1300, 1400]
    assert row["chunk_tokens"] == [1, 2, 2, 1]
    assert (row["sent_ns"], row["ttft_ns"], row["e2e_ns"]) == (1000, 100, 400)
    assert (row["num_verifies"], row["cached_tokens"], row["output_tokens"]) == (2, 3, 6)
    assert holds(server) == [1, 0]


def test_time_stands_for_as_many_requests_as_clients_have_work():
    load = Load(requests=5, bursts=2, concurrency=3, prompt_tokens=5)
    pages = {"server_info": INFO, "virtual_clock": b"{}"}
    with serving(lambda _n, _b: stamped(1000, [1100]), **pages) as server:
        drive(load, server.url, phase="traced")
    told = holds(server)
    assert (len(told), told[0], told[3], told[4], told[7]) == (8, 3, 0, 3, 0)
    # Clients that end at once may be taken off at once.
    assert told[:4] == sorted(told[:4], reverse=True)
    assert told[1] < 3
    rids = [body["rid"] for _, path, body, _ in server.requests if path == "/v1/completions"]
    assert len(set(rids)) == 10


def test_arrivals_of_a_rate_are_sent_in_the_time_of_the_server():
    load = Load(requests=4, bursts=1, rate_per_s=1e6, prompt_tokens=5)
    pages = {"server_info": INFO, "virtual_clock": b"{}"}
    with serving(lambda _n, body: stamped(body["arrival_ns"], [10**9]), **pages) as server:
        driven = drive(load, server.url, phase="traced")
    dues = driven.records["due_ns"].to_list()
    assert dues == sorted(dues)
    assert dues[0] > 1000
    assert driven.records["queued_ns"].to_list() == [0] * 4
    assert (holds(server)[0], holds(server)[-1]) == (4, 0)


def test_a_server_that_stops_to_hold_its_time_ends_the_load():
    pages = {"server_info": INFO}
    with serving(lambda _n, _b: stamped(1000, [1100]), **pages) as server:
        driven = drive(Load(prompt_tokens=5), server.url, phase="traced")
    assert "holds its time no more" in driven.stopped
    assert driven.records.is_empty()


@contextmanager
def shipped_server():
    command = [sys.executable, "-m", "instrumented_runtime.server", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        yield found[0]
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.slow
def test_two_starts_of_the_shipped_server_see_the_same_load_at_the_same_times():
    loads = {
        "burst": Load(bursts=2, prompt_tokens=[20, 60], output_tokens=24),
        "loop": Load(requests=20, bursts=1, concurrency=6, prompt_tokens=30, output_tokens=24),
        "rate": Load(requests=12, bursts=1, rate_per_s=300, prompt_tokens=30),
        "capped": Load(requests=12, bursts=1, rate_per_s=300, concurrency=3, prompt_tokens=30),
    }
    runs = []
    for _ in range(2):
        with shipped_server() as url:
            runs.append({name: drive(load, url, phase=name) for name, load in loads.items()})
    first, second = runs
    for name in loads:
        assert first[name].stopped is None
        assert_frame_equal(first[name].records, second[name].records)
        assert set(first[name].records["status"]) == {"ok"}
    burst = client_metrics(first["burst"])
    assert burst["cache_flush"] == "/flush_cache"
    # In virtual time every step is a chunk: cycles counted directly, not through acceptance.
    steps = []
    for _, part in first["burst"].records.group_by("burst"):
        low, high = part["first_token_ns"].max(), part["last_token_ns"].min()
        for chunks in part["chunk_ns"]:
            steps += [b - a for a, b in itertools.pairwise(chunks) if a >= low and b <= high]
    assert burst["cycle_ns"] == pytest.approx(sum(steps) / len(steps), rel=0.1)
    capped = first["capped"].records
    assert (capped["sent_ns"] >= capped["due_ns"]).all()
    assert capped.filter(pl.col("queued_ns") > 0).height > 3
    assert most_under_way(capped) == 3


def most_under_way(records):
    ends = [(at, -1) for at in records["end_ns"]] + [(at, 1) for at in records["sent_ns"]]
    return max(itertools.accumulate(change for _, change in sorted(ends)))
