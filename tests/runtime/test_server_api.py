"""The server as its clients see it: the real OpenAI client, and requests that are wrong.

What an answer has to say comes from a decoder of whole numbers, which shares no code with the engine.
"""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import httpx
import openai
import pytest
from engine_runs import greedy
from server_runs import PATIENCE_S, held, server, waited_for

from instrumented_runtime.server.app import ROUTES
from tracekit.formats import read_trace, silent
from tracekit.pipeline import analyse

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "server.md").read_text()
MODEL = "tiny-decoder"
MAX_TOKENS = 300


@pytest.fixture(scope="module")
def running():
    with server("--max-tokens", str(MAX_TOKENS), "--max-running", "4") as one:
        yield one


@pytest.fixture(scope="module")
def client(running):
    with openai.OpenAI(
        base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S
    ) as one:
        yield one


def words(tokens):
    return " ".join(f"w{token}" for token in tokens)


def hashed(*said):
    return tuple(crc32(word.encode()) % 512 for word in said)


def after(prompt, count):
    """Return the text that follows a prompt's tokens."""
    return words(greedy(0, prompt, count))


def test_a_completion_says_what_the_decoder_says(client):
    answer = client.completions.create(model=MODEL, prompt="hello big world", max_tokens=9)
    assert answer.choices[0].text == after(hashed("hello", "big", "world"), 9)
    assert answer.choices[0].finish_reason == "length"
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 9, 12)


def test_tokens_and_the_words_that_answers_are_written_in_are_the_same_prompt(client):
    prompt = (5, 0, 511)
    for given in (list(prompt), words(prompt), [words(prompt)], [list(prompt)]):
        answer = client.completions.create(model=MODEL, prompt=given, max_tokens=5)
        assert answer.choices[0].text == after(prompt, 5)


def test_a_streamed_completion_is_the_same_in_chunks_with_its_usage_at_the_end(client):
    *chunks, last = client.completions.create(
        model=MODEL,
        prompt="a b",
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert len(chunks) > 2
    assert "".join(chunk.choices[0].text for chunk in chunks) == after(hashed("a", "b"), 20)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert {chunk.usage for chunk in chunks} == {None}
    assert (last.choices, last.usage.completion_tokens) == ([], 20)


CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
]
CHAT_TOKENS = hashed("<begin>", "<system>", "be", "brief", "<user>", "hello", "<assistant>")


def test_a_chat_is_answered_whole(client):
    answer = client.chat.completions.create(model=MODEL, messages=CHAT, max_completion_tokens=7)
    message = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", after(CHAT_TOKENS, 7))
    assert answer.usage.prompt_tokens == len(CHAT_TOKENS)


def test_a_chat_is_streamed_in_deltas_of_which_the_first_says_who_speaks(client):
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=20, stream=True)
    )
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta.content for delta in deltas) == after(CHAT_TOKENS, 20)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_a_stream_is_events_that_end_with_done(running):
    answer = running.complete("a", 3, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, rest = answer.text.split("\n\n")
    assert (events[-1], rest) == ("data: [DONE]", "")
    assert all(json.loads(one.removeprefix("data: "))["choices"] for one in events[:-1])


def test_an_answer_ends_before_a_stop_string(client):
    prompt = (7, 7, 7)
    said = greedy(0, prompt, 40)
    # Across two words, so that it comes in two chunks at times.
    stop = f"{said[20]} w{said[21]}"
    text = words(said)
    expected = text[: text.index(stop)]
    asked = {"model": MODEL, "prompt": list(prompt), "max_tokens": 40, "stop": [stop, "never"]}
    whole = client.completions.create(**asked)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (expected, "stop")
    assert 21 < whole.usage.completion_tokens < 40
    chunks = list(client.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_after_a_stop_string_nothing_of_that_answer_is_computed(running):
    stop = f"w{greedy(0, (7,), 10)[9]}"
    before = running.get("/server_info").json()["num_verified_tokens"]
    stopped = running.complete([7], 290, stop=stop).json()["usage"]["completion_tokens"]
    # Were it still served, it would be beside this one.
    running.complete([8], 200)
    verified = running.get("/server_info").json()["num_verified_tokens"] - before
    assert stopped <= 10 + 5
    # Each may have a step too many, and more in its last than it wants.
    assert verified <= stopped + 6 + 200 + 6


def test_tokens_are_stamped_in_virtual_time_each_once_and_verifies_are_counted(running):
    before = running.get("/server_info").json()
    parts = running.complete("hello", 30, stream=True).text.split("\n\n")[:-2]
    stamps = [json.loads(part.removeprefix("data: "))["tracekit"] for part in parts]
    after_it = running.get("/server_info").json()
    times = [one for stamp in stamps for one in stamp["token_ns"]]
    assert len(times) == 30
    assert times == sorted(times)
    assert {stamp["clock"] for stamp in stamps} == {"virtual"}
    assert before["now_ns"] <= stamps[0]["arrival_ns"] < times[0]
    assert times[-1] <= after_it["now_ns"]
    verifies = after_it["num_verifies"] - before["num_verifies"]
    assert stamps[-1]["num_verifies"] == verifies
    # The first token comes from the prefill; the last verify may yield more than is wanted.
    yielded = after_it["num_verified_tokens"] - before["num_verified_tokens"]
    assert 29 <= yielded < 29 + 6
    states = after_it["internal_states"]
    expected = after_it["num_verified_tokens"] / after_it["num_verifies"]
    assert states == [{"avg_spec_accept_length": expected}]


def test_a_cached_prefix_is_found_until_the_cache_is_flushed(running):
    prompt = [3] * 200
    cached = [running.complete(prompt, 2).json()["tracekit"]["cached_tokens"] for _ in range(2)]
    assert running.post("/flush_cache").status_code == 200
    cached.append(running.complete(prompt, 2).json()["tracekit"]["cached_tokens"])
    # Whole pages of 64, and never the last token.
    assert cached == [0, 192, 0]


def test_the_server_says_what_it_is(running, client):
    assert [one.id for one in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    info = running.get("/server_info").json()
    wanted = {"model": MODEL, "device": "virtual", "is_model": True, "max_tokens": MAX_TOKENS}
    assert {key: info[key] for key in wanted} == wanted
    assert (info["max_running"], info["num_running"], info["num_waiting"]) == (4, 0, 0)
    assert info["start_noise"]["variation"] == 0.005
    assert running.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("completions", "{bad", 400, "not JSON"),
        ("completions", "[]", 400, "the body"),
        ("completions", "{}", 400, "prompt"),
        ("completions", {"prompt": ""}, 400, "prompt: is empty"),
        ("completions", {"prompt": []}, 400, "prompt: is empty"),
        ("completions", {"prompt": [512]}, 400, "0 to 511"),
        ("completions", {"prompt": ["a", "b"]}, 400, "prompt"),
        ("completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ("completions", {"prompt": "a", "max_tokens": -3}, 400, "max_tokens"),
        ("completions", {"prompt": "a", "max_tokens": "9"}, 400, "max_tokens"),
        ("completions", {"prompt": "a", "n": 2}, 400, "n: 2"),
        ("completions", {"prompt": "a", "logprobs": 3}, 400, "logprobs"),
        ("completions", {"prompt": "a", "stop": ""}, 400, "stop"),
        ("completions", {"prompt": "a", "stop": ["b", ""]}, 400, "stop"),
        ("completions", {"prompt": "a", "max_tokens": MAX_TOKENS}, 400, "300 tokens"),
        ("completions", {"prompt": [1] * MAX_TOKENS}, 400, "300 of the prompt"),
        ("completions", {"prompt": "a", "model": "gpt"}, 404, "'gpt'"),
        ("chat/completions", {"messages": []}, 400, "messages: is empty"),
        ("chat/completions", {"messages": [{"content": "a"}]}, 400, "messages.0.role"),
        ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, 400, "content"),
        ("chat/completions", {"messages": CHAT, "model": "gpt"}, 404, "'gpt'"),
        ("nothing", {}, 404, "/v1/nothing"),
    ],
)
def test_what_is_wrong_is_answered_with_its_status_and_in_openais_words(
    running, path, body, status, says
):
    content = body if isinstance(body, str) else json.dumps(body)
    headers = {"content-type": "application/json"}
    answer = running.client.post(f"{running.url}/v1/{path}", content=content, headers=headers)
    assert answer.status_code == status
    assert says in answer.json()["error"]["message"]


def test_a_prompt_that_is_too_long_is_the_clients_own_error(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[1] * MAX_TOKENS, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"
    longest = client.completions.create(model=MODEL, prompt=[1] * (MAX_TOKENS - 1), max_tokens=1)
    assert longest.usage.total_tokens == MAX_TOKENS


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_goes_gives_its_slot_back(running, is_streamed):
    before = running.get("/server_info").json()["num_verifies"]
    body = {"prompt": "a", "max_tokens": 250, "stream": is_streamed}
    # With a second request to come the clock would stand for ever: the first is not answered.
    held(running, 2)
    try:
        with pytest.raises(httpx.ReadTimeout):
            running.client.post(f"{running.url}/v1/completions", json=body, timeout=0.3)
        waited_for(running, num_running=0, num_waiting=0, num_to_come=0)
    finally:
        held(running, 0)
    assert running.get("/server_info").json()["num_verifies"] == before


def test_requests_without_number_are_served_a_few_at_a_time(running):
    async def ask_all():
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=PATIENCE_S, verify=False) as http:
            url = f"{running.url}/v1/completions"
            asked = [
                http.post(url, json={"prompt": [number], "max_tokens": 4}) for number in range(24)
            ]
            return await asyncio.gather(*asked)

    answers = asyncio.run(ask_all())
    said = [answer.json()["choices"][0]["text"] for answer in answers]
    assert said == [after((number,), 4) for number in range(24)]


def blamed_by_the_example(one, folder):
    """Run the page's example against a server; return what owns its idle time, and findings."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    program = example.replace("http://127.0.0.1:30000", one.url).replace("runs", str(folder))
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    file = folder / "server" / "virtual_1.db"
    assert run.stdout == f"{after(hashed('hello', 'world'), 60)} 60\n['{file}']\n"
    report = analyse(read_trace([file], silent))
    (device,) = report.devices
    causes = device.idle_ns_by_cause
    blocked = causes.get("host-blocked", 0) / sum(causes.values())
    return blocked, {one.code for one in report.findings}


def test_the_example_of_the_page_runs_and_its_report_says_what_the_page_says(running, tmp_path):
    assert all(f"--policy {policy}" in PAGE for policy in ("host-sync", "forward-stream"))
    with server("--policy", "host-sync") as one:
        blocked, findings = blamed_by_the_example(one, tmp_path / "host")
    assert blocked > 0.5
    assert "host-blocked.publish-event" in findings
    # The choice of `auto` on this device.
    assert running.get("/server_info").json()["policy"] == "forward-stream"
    blocked, findings = blamed_by_the_example(running, tmp_path / "stream")
    assert blocked < 0.1
    assert "host-blocked.publish-event" not in findings


def test_the_page_lists_every_route():
    listed = re.findall(r"`(?:GET |POST )?(/[\w/{}]+)`", PAGE.partition("## What it answers")[2])
    routes = {route.path.replace(":path", "") for route in ROUTES.routes}
    assert routes <= set(listed)
