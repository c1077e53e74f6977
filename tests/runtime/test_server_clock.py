"""Virtual time of the server: what is held, what is paced, and what is the same each time."""

import time
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest
from server_runs import closed_loop, held, server, waited_for

from instrumented_runtime.server.virtual_clock import Hold, Pace
from tracekit.formats import read_trace, silent

CLIENTS, EACH = 4, 2
SMALL = ("--max-running", "3", "--max-tokens", "256", "--chunk-tokens", "128", "--seed", "5")


def asked_by(client):
    """Prompts of several lengths, so that clients are not in step; the last asks longest."""
    return [
        ([(client * 7 + number) % 512] * (10 + 23 * client + 40 * number), 5 + 3 * client)
        for number in range(EACH)
    ]


def recorded_loop(running, folder):
    """Serve a closed loop within a window; return its file and all answers."""
    assert running.post("/start_profile", {"output_dir": str(folder)}).status_code == 200
    answers = closed_loop(running, CLIENTS, asked_by)
    files = running.post("/stop_profile").json()["files"]
    return files, answers


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """Return folder, two windows and counters around the second, of two servers of one seed."""
    runs = []
    for name in ("a", "b"):
        folder = tmp_path_factory.mktemp(name)
        with server(*SMALL, environment={"PYTHONHASHSEED": str(len(runs))}) as running:
            first = recorded_loop(running, folder)
            before = running.get("/server_info").json()
            second = recorded_loop(running, folder)
            after = running.get("/server_info").json()
        runs.append((folder, first, second, before, after))
    return runs


def test_over_real_http_two_servers_of_one_seed_write_the_same_bytes(twice):
    (one, first, second, *_), (other, *others) = twice
    assert first[0] == [str(one / "virtual_1.db")]
    assert second[0] == [str(one / "virtual_2.db")]
    for name in ("virtual_1.db", "virtual_2.db"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    for mine, theirs in zip((first, second), others[:2], strict=True):
        stamps = [{rid: said["tracekit"] for rid, said in run[1].items()} for run in (mine, theirs)]
        assert len(stamps[0]) == CLIENTS * EACH
        assert stamps[0] == stamps[1]


def test_who_is_answered_asks_again_at_that_very_moment_of_virtual_time(twice):
    _, (_, answers), *_ = twice[0]
    for client in range(CLIENTS):
        mine = [answers[f"{client:03}-{number:03}"]["tracekit"] for number in range(EACH)]
        ends = [one["token_ns"][-1] for one in mine]
        assert [one["arrival_ns"] for one in mine[1:]] == ends[:-1]


def test_a_window_holds_what_was_launched_in_it_and_names_all_there_is(twice):
    folder, (_, first), _, before, after = twice[0]
    first_token_ns = first["000-000"]["tracekit"]["token_ns"][0]
    trace = read_trace([folder / "virtual_2.db"], silent)
    steps = trace.table("ranges").filter(pl.col("text").str.starts_with("tk1 step"))
    texts = steps["text"].to_list()
    verifies = [int(text.split("bs=")[1].split()[0]) for text in texts if "kind=verify" in text]
    # A step too many is launched for each request before it is known to be its last.
    counted = after["num_verifies"] - before["num_verifies"]
    assert counted <= sum(verifies) <= counted + CLIENTS * EACH
    ops, calls = trace.table("ops"), trace.table("calls")
    assert ops["call_id"].null_count() == 0
    assert calls["start_ns"].min() >= before["now_ns"] > first_token_ns
    flags = dict(trace.table("streams").select("name", "flags").iter_rows())
    assert flags == {"Default Stream": "null", "Stream 0": "nonblocking"}
    accesses = trace.table("accesses")
    assert accesses["address"].null_count() == 0
    # Graphs were captured long before the window.
    replays = calls.filter(kind="graph_launch")["call_id"]
    assert replays.len() > 0
    declared = set(accesses.filter(pl.col("call_id").is_in(replays.implode()))["call_id"])
    assert declared == set(replays)


@pytest.fixture(scope="module")
def running():
    with server("--max-running", "1", "--max-tokens", "256") as one:
        yield one


def test_requests_of_one_moment_are_served_in_the_order_of_their_rids(running):
    held(running, 2)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(running.complete, "a", 5, rid="b")
        waited_for(running, num_to_come=1)
        # The clock stands again once one of the two is answered.
        first = running.complete("b", 5, rid="a").json()["tracekit"]
        held(running, 0)
        second = late.result().json()["tracekit"]
    assert first["arrival_ns"] == second["arrival_ns"]
    assert first["token_ns"][-1] < second["token_ns"][0]


def test_an_idle_server_goes_to_the_moment_of_the_next_arrival(running):
    now_ns = running.get("/server_info").json()["now_ns"]
    began = time.monotonic()
    said = running.complete("a", 5, arrival_ns=now_ns + 3_600_000_000_000).json()["tracekit"]
    assert time.monotonic() - began < 60
    assert said["arrival_ns"] == now_ns + 3_600_000_000_000
    # A prefill and a verify of one request: 8.6 ms each.
    assert 0 < said["token_ns"][0] - said["arrival_ns"] < 20_000_000
    # What is past comes now.
    late = running.complete("a", 5, arrival_ns=0).json()["tracekit"]
    assert late["arrival_ns"] >= said["token_ns"][-1]


def test_what_is_still_under_way_when_all_are_answered_is_over_when_a_hold_ends(running):
    held(running, 1)
    # The step after its last was launched before anyone knew; now the clock stands.
    end_ns = running.complete("a", 5).json()["tracekit"]["token_ns"][-1]
    answer = running.post("/virtual_clock", {"hold_below": 0})
    settled_ns = answer.json()["now_ns"]
    # A verify takes 8.6 ms.
    assert settled_ns - end_ns > 8_000_000
    time.sleep(0.1)
    assert running.get("/server_info").json()["now_ns"] == settled_ns


def test_a_hold_that_hears_nothing_gives_up_and_says_so(running):
    running.post("/virtual_clock", {"hold_below": 3, "expires_s": 0.3})
    began = time.monotonic()
    assert running.complete("a", 5).status_code == 200
    assert time.monotonic() - began >= 0.3
    assert any("held for 1 of 3 requests" in line for line in running.said)


@pytest.mark.parametrize("body", [{"hold_below": -1}, {"hold_below": 1, "expires_s": 0}, {}])
def test_a_hold_that_cannot_be_is_refused(running, body):
    assert running.post("/virtual_clock", body).status_code == 400


def test_at_a_pace_virtual_time_never_runs_faster_and_idle_time_passes_too():
    with server("--pace", "2") as running:
        began = time.monotonic()
        first = running.complete("a", 150).json()["tracekit"]
        took_s = time.monotonic() - began
        virtual_s = (first["token_ns"][-1] - first["arrival_ns"]) / 1e9
        # 150 tokens at 3.2 per verify of 8.6 ms: 0.4 s.
        assert 0.3 < virtual_s < 0.6
        assert virtual_s / 2 <= took_s
        # A second passes, of which the requests themselves take less than a half: a prefill each.
        for _ in range(20):
            time.sleep(0.25)
            last = running.complete("a", 1).json()["tracekit"]
            if last["arrival_ns"] >= first["token_ns"][-1] + 1e9:
                break
        else:
            raise AssertionError((first, last))
        took_s = time.monotonic() - began
        # A step may be under way that began before.
        assert last["arrival_ns"] - first["arrival_ns"] <= 2 * took_s * 1e9 + 20_000_000


class Clock:
    """A wall clock that a test moves."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def test_a_hold_stands_below_its_number_and_expires_after_the_last_news():
    clock = Clock()
    hold = Hold(clock)
    assert not hold.stands(0)
    hold.set(2, 10)
    assert (hold.stands(1), hold.stands(2)) == (True, False)
    clock.now_s += 9
    hold.news()
    clock.now_s += 9
    assert hold.left_s == 1
    clock.now_s += 2
    assert hold.left_s == 0


def test_a_pace_waits_for_the_wall_and_forgives_a_lag_it_cannot_catch_up_with():
    clock = Clock()
    pace = Pace(4, 1_000_000_000, clock)
    # 2 virtual seconds later is half a second later by the wall.
    assert pace.wait_s(3_000_000_000) == 0.5
    clock.now_s += 0.25
    assert pace.wait_s(3_000_000_000) == 0.25
    assert pace.idle_ns(0) == 2_000_000_000
    # 0.01 s behind is caught up with: the next step is due at the old time.
    pace.forgive(2_000_000_000 - 40_000_000)
    assert pace.wait_s(3_000_000_000) == 0.25
    # 0.25 s behind is not.
    pace.forgive(1_000_000_000)
    assert pace.wait_s(3_000_000_000) == 0.5
    free = Pace(None, 0, clock)
    assert (free.wait_s(10**18), free.idle_ns(7)) == (0, 7)
