"""Load over real sockets: what is sent, when, and what is kept of whatever a server does."""

import asyncio
import json
import os
import re
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from sse_server import DONE, Answer, event, serving, text_event

from tracekit.capture.load.driving import Load, drive, read_load
from tracekit.capture.load.request_plan import planned
from tracekit.errors import BadInput, TracekitError
from tracekit.tables.client import METRICS

ONE = Load(requests=1, bursts=1, prompt_tokens=8, output_tokens=4)


def answered(*texts, wait_s=0.0):
    pieces = [(wait_s, text_event(text, n + 1)) for n, text in enumerate(texts)]
    return Answer([*pieces, (0, text_event("", len(texts), "length")), (0, DONE)])


def rows(driven):
    return driven.records.to_dicts()


def test_times_are_those_of_the_chunks():
    answer = Answer(
        [
            (0.10, text_event("", 0)),
            (0.05, text_event("a", 1)),
            (0.10, text_event(" b c", 3) + text_event(" d", 4, "length")),
            (0.10, DONE),
        ]
    )
    with serving(lambda _n, _b: answer) as server:
        driven = drive(ONE, server.url, phase="traced")
    (row,) = rows(driven)
    assert (row["status"], row["finish_reason"], driven.clock) == ("ok", "length", "wall")
    assert (row["output_tokens"], row["prompt_tokens"], row["chunk_tokens"]) == (4, 7, [1, 2, 1])
    first, second, third = (at - row["sent_ns"] for at in row["chunk_ns"])
    # Scripted at 150, 250, 250 and 350 ms; a busy machine is late, never early.
    assert 0.148e9 < first < 0.5e9
    assert 0.098e9 < second - first < 0.5e9
    assert third - second < 0.09e9
    assert row["ttft_ns"] == first
    assert 0.348e9 < row["e2e_ns"] < 0.9e9
    assert row["tpot_ns"] == pytest.approx((row["e2e_ns"] - row["ttft_ns"]) / 3)


def test_a_server_that_keeps_its_headers_back_is_no_faster_for_it():
    async def late(_number, _body):
        await asyncio.sleep(0.2)
        return answered("a")

    with serving(late) as server:
        driven = drive(ONE, server.url, phase="traced")
    assert rows(driven)[0]["ttft_ns"] > 0.198e9


def test_the_clock_of_a_request_starts_when_it_is_sent_not_when_it_is_due():
    load = Load(requests=4, bursts=1, concurrency=1, rate_per_s=1000, output_tokens=4)
    with serving(lambda _n, _b: answered("a", wait_s=0.1)) as server:
        driven = drive(load, server.url, phase="traced")
    assert server.most_open == 1
    records = sorted(rows(driven), key=lambda row: row["rid"])
    assert all(0.098e9 < row["ttft_ns"] < 0.35e9 for row in records)
    # All are due within some milliseconds; each waits for the ones before it, 100 ms each.
    waited = [row["queued_ns"] for row in records]
    assert waited[0] < 0.2e9
    assert waited[3] > 0.28e9
    assert all(row["due_ns"] + row["queued_ns"] == row["sent_ns"] for row in records)


def test_requests_of_a_rate_are_sent_when_they_are_due():
    load = Load(requests=6, bursts=1, rate_per_s=20, output_tokens=4)
    with serving(lambda _n, _b: answered("a", wait_s=0.1)) as server:
        driven = drive(load, server.url, phase="traced")
    (burst,) = planned(load, "traced")
    dues = driven.records["due_ns"].to_list()
    assert [b - a for a, b in pairwise(dues)] == [
        b.due_after_ns - a.due_after_ns for a, b in pairwise(burst)
    ]
    assert all(-1e6 < row["queued_ns"] < 0.3e9 for row in rows(driven))
    assert server.most_open > 1


def test_a_closed_loop_keeps_its_clients_busy_and_no_more():
    load = Load(requests=9, bursts=1, concurrency=3, output_tokens=4)
    with serving(lambda _n, _b: answered("a", wait_s=0.1)) as server:
        driven = drive(load, server.url, phase="traced")
    assert server.most_open == 3
    assert [row["status"] for row in rows(driven)] == ["ok"] * 9
    # Due is when a client is free: from the start of the burst it would be 0.2 s for the last ones.
    assert max(row["queued_ns"] for row in rows(driven)) < 0.15e9


def test_what_fails_is_named_and_the_others_go_on():
    answers = {
        0: answered("a", "b"),
        1: Answer(status=503, body=b"busy, Bearer sk-abcdefghijkl said"),
        2: Answer([(0, text_event("a", 1))], cut=True),
        3: Answer([(0, text_event("a", 1))]),
        4: Answer([(0, event(error={"message": "out of memory"})), (0, DONE)]),
        5: Answer([(0, b"data: {nonsense\n\n")]),
        6: Answer([(0, text_event("a", 1))], hang=True),
        7: Answer([(0, b"data: [1]\n\n")]),
        8: Answer([(0, b'data: {"choices": [{"text": "a"}], "usage": 3}\n\n')]),
    }
    load = Load(requests=9, bursts=1, concurrency=1, timeout_s=0.5, output_tokens=4)
    with serving(lambda number, _b: answers[number]) as server:
        driven = drive(load, server.url, phase="traced")
    got = [(row["status"], row["problem"]) for row in rows(driven)]
    assert got == [
        ("ok", None),
        ("failed", "HTTP 503"),
        ("failed", "RemoteProtocolError"),
        ("failed", "cut off"),
        ("failed", "error in the stream"),
        ("failed", "malformed answer"),
        ("failed", "timeout"),
        ("failed", "malformed answer"),
        ("failed", "malformed answer"),
    ]
    details = driven.records["detail"].to_list()
    assert "sk-abcdefghijkl" not in details[1]
    assert "out of memory" in details[4]
    assert driven.records["e2e_ns"].null_count() == 8


def test_a_server_that_is_gone_fails_every_request_and_nothing_hangs():
    with serving(lambda _n, _b: answered("a")) as server:
        url = server.url
    driven = drive(Load(requests=2, bursts=1, model="toy"), url, phase="traced")
    assert [row["problem"] for row in rows(driven)] == ["ConnectError", "ConnectError"]


def test_a_chunk_may_hold_any_character_and_come_in_any_pieces():
    whole = text_event("a\u2028b\x85c", 1) + text_event("d", 2, "stop") + DONE
    pieces = [(0, whole[i : i + 1]) for i in range(len(whole))]
    crlf = whole.replace(b"\n", b"\r\n")
    # A comment, an event of several lines, and an end that only [DONE] without its newline tells.
    lines = b": ping\n\n" + text_event("a", 1).replace(b', "usage"', b'\nid: 7\ndata: , "usage"')
    unfinished = lines + text_event("b", 2) + DONE.rstrip(b"\n")
    answers = [Answer(pieces), Answer([(0, crlf)]), Answer([(0, unfinished)])]
    load = Load(requests=3, bursts=1, concurrency=1, output_tokens=4)
    with serving(lambda number, _b: answers[number]) as server:
        driven = drive(load, server.url, phase="traced")
    assert [(row["status"], row["chunk_tokens"]) for row in rows(driven)] == [("ok", [1, 1])] * 3


def test_what_is_asked_of_the_server():
    load = Load(
        requests=2,
        bursts=2,
        prompts="tokens",
        prompt_tokens=[5, 9],
        output_tokens=[3, 6],
        shared_prefix_tokens=2,
        headers={"Authorization": "Bearer abc"},
        seed=3,
    )
    with serving(lambda _n, _b: answered("a"), flush_cache=b"ok") as server:
        driven = drive(load, server.url, phase="traced")
    sent = [(body, headers) for _, path, body, headers in server.requests if "comp" in path]
    assert len(sent) == 4
    prompts = [body["prompt"] for body, _ in sent]
    assert len({tuple(prompt) for prompt in prompts}) == 4
    assert len({tuple(prompt[:2]) for prompt in prompts}) == 1
    for (body, headers), row in zip(sent, rows(driven), strict=True):
        assert headers["authorization"] == "Bearer abc"
        assert body["model"] == "toy"
        assert body["stream"] is True
        assert body["ignore_eos"] is True
        assert 5 <= len(body["prompt"]) <= 9
        assert 3 <= body["max_tokens"] <= 6
        assert "rid" not in body
        assert row["asked_output_tokens"] in range(3, 7)
    paths = [
        path for _, path, _, _ in server.requests if path in {"/flush_cache", "/v1/completions"}
    ]
    burst = ["/flush_cache", "/v1/completions", "/v1/completions"]
    assert paths == burst * 2
    assert driven.cache_flush == "/flush_cache"


def prompts_of_two_phases(**pages):
    load = Load(requests=3, bursts=1)
    found = []
    for phase in ("untraced", "traced"):
        with serving(lambda _n, _b: answered("a"), **pages) as server:
            driven = drive(load, server.url, phase=phase)
        bodies = [body for _, path, body, _ in server.requests if path == "/v1/completions"]
        found.append({body["prompt"] for body in bodies})
    return *found, driven.cache_flush


def test_phases_share_prompts_only_where_the_cache_can_be_flushed():
    first, second, how = prompts_of_two_phases(flush_cache=b"ok")
    assert (first == second, how) == (True, "/flush_cache")
    first, second, how = prompts_of_two_phases(reset_prefix_cache=b"ok")
    assert (first == second, how) == (True, "/reset_prefix_cache")
    first, second, how = prompts_of_two_phases()
    assert not first & second
    assert "prompts differ by phase" in how


def test_a_chat_is_a_message_and_its_content_counts():
    deltas = [{"role": "assistant", "content": ""}, {"content": "hi"}, {"reasoning_content": "m"}]
    pieces = [(0, event(choices=[{"delta": delta}])) for delta in deltas]
    load = Load(requests=1, bursts=1, kind="chat", prompt_tokens=6, model="m")
    with serving(lambda _n, _b: Answer([*pieces, (0, DONE)])) as server:
        driven = drive(load, server.url, phase="traced")
    ((_, path, body, _),) = [r for r in server.requests if "completions" in r[1]]
    assert path == "/v1/chat/completions"
    assert body["messages"][0]["role"] == "user"
    assert len(body["messages"][0]["content"].split()) == 6
    assert len(rows(driven)[0]["chunk_ns"]) == 2


def test_the_same_seed_is_the_same_load_and_phases_share_it():
    load = Load(requests=5, rate_per_s=10, prompt_tokens=[4, 30], output_tokens=[1, 9], seed=7)

    def without_names(bursts):
        return [
            (r.prompt, r.prompt_tokens, r.output_tokens, r.due_after_ns) for b in bursts for r in b
        ]

    first = without_names(planned(load, "untraced"))
    assert without_names(planned(load, "traced")) == first
    cold = without_names(planned(load, "traced", contents="traced"))
    assert [row[1:] for row in cold] == [row[1:] for row in first]
    assert not {row[0] for row in cold} & {row[0] for row in first}
    warm_up = without_names(planned(load, "warm_up"))
    assert len(warm_up) == load.warm_up
    assert not {row[0] for row in warm_up} & {row[0] for row in first}


def test_poisson_arrivals_have_the_mean_and_the_spread_of_poisson_arrivals():
    load = Load(requests=4000, bursts=1, rate_per_s=50, prompt_tokens=20)
    (burst,) = planned(load, "traced")
    dues = [0, *(request.due_after_ns for request in burst)]
    gaps = [(b - a) / 1e9 for a, b in pairwise(dues)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    # Mean and deviation are both 1/50 s; 4 standard errors of 4,000 exponential gaps.
    assert mean == pytest.approx(0.02, rel=4 / 4000**0.5)
    assert deviation == pytest.approx(0.02, rel=8 / 4000**0.5)


def test_prompts_too_short_to_differ_are_refused():
    with pytest.raises(BadInput, match="too short"):
        planned(Load(requests=500, prompt_tokens=1), "traced")


def test_ctrl_c_keeps_what_was_sent():
    load = Load(requests=3, bursts=1, concurrency=1, output_tokens=4)
    answers = {0: answered("a"), 1: Answer([(0, text_event("a", 1))], hang=True)}
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))

    def answer(number, _body):
        if number == 1:
            timer.start()
        return answers[number]

    try:
        with serving(answer) as server:
            began = time.monotonic()
            driven = drive(load, server.url, phase="traced")
            assert time.monotonic() - began < 5
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, old)
    assert driven.stopped == "interrupted"
    assert [row["status"] for row in rows(driven)] == ["ok", "interrupted"]
    assert (driven.num_planned, driven.records["chunk_tokens"].to_list()[1]) == (3, [1])


def test_whoever_watches_the_server_can_stop_the_load():
    load = Load(requests=1, bursts=2, output_tokens=4)
    hanging = Answer([(0, text_event("a", 1))], hang=True)
    began = time.monotonic()
    with serving(lambda _n, _b: hanging) as server:
        driven = drive(
            load,
            server.url,
            phase="traced",
            should_stop=lambda: "server died" if server.open else None,
        )
    assert time.monotonic() - began < 5
    assert driven.stopped == "server died"
    assert [row["status"] for row in rows(driven)] == ["interrupted"]


def test_a_server_that_names_no_model_needs_one_in_the_load():
    with (
        serving(lambda _n, _b: answered("a"), **{"v1/models": {"data": []}}) as server,
        pytest.raises(TracekitError, match="names no model"),
    ):
        drive(ONE, server.url, phase="traced")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("request = 3", "unknown field `request`"),
        ("requests = 0", "`int` >= 1"),
        ("prompt_tokens = [9, 3]", "least, greatest"),
        ('kind = "chat"\nprompts = "tokens"', "no chat message"),
        ("shared_prefix_tokens = 128", "nothing of its own"),
        ("prompt_tokens = [9]", "least, greatest"),
        ("requests = ", "Invalid value"),
        ('kind = "embeddings"', "Invalid enum value"),
    ],
)
def test_a_file_that_is_no_load_is_refused_with_its_path(tmp_path, text, problem):
    path = tmp_path / "load.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as error:
        read_load(path)
    assert str(path) in str(error.value)
    assert problem in str(error.value)


def test_a_load_file_says_what_it_changes(tmp_path):
    path = tmp_path / "load.toml"
    path.write_text('requests = 2\nprompt_tokens = [3, 4]\n[headers]\nA = "b"\n')
    assert read_load(path) == Load(requests=2, prompt_tokens=[3, 4], headers={"A": "b"})
    with pytest.raises(BadInput, match="cannot be read"):
        read_load(tmp_path / "none.toml")


def test_the_document_names_every_key_with_its_default_and_every_metric():
    text = (Path(__file__).parents[2] / "docs" / "load.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE))
    for name in Load.__struct_fields__:
        default = getattr(Load(), name)
        told = rows[name].strip("`")
        if default not in (None, {}):
            shown = list(default) if isinstance(default, tuple) else default
            assert told == json.dumps(shown) or float(told) == default, name
    stems = {re.sub(r"_(n|mean_ns|p50_ns|p90_ns|p99_ns|max_ns)$", "", name) for name in METRICS}
    assert {stem for stem in stems if f"`{stem}`" not in text} == {"phase"}
