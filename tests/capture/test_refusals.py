"""What no capture can do, or no server may answer, is said in a sentence: no traceback, no hang."""

import os

import pytest
from sse_server import DONE, Answer, event, serving, text_event
from toy_session import TOY, ToySession
from watching import Told

from tracekit.capture.lifecycle import capture
from tracekit.capture.load.driving import Load, drive, read_load
from tracekit.capture.profiling_endpoints import post
from tracekit.capture.readiness import Readiness, speaks_openai
from tracekit.capture.wanted import Wanted
from tracekit.capture.what_ran import take_server, what_ran
from tracekit.cli import main
from tracekit.errors import BadInput, TracekitError
from tracekit.manifest.what_ran import read_what_ran

DEEP = b"[" * 200_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("requests = 1000000000000", "at most 1,000,000 requests in all"),
        ("requests = 500000\nbursts = 2\nwarm_up = 1", "not 1,000,001"),
        ("prompt_tokens = 1000000000000", "at most 10,000,000 tokens"),
        ("output_tokens = 1000000000000", "at most 10,000,000 tokens"),
        ("prompt_tokens = 10000000", "at most 200,000,000 prompt tokens in all"),
        ("rate_per_s = inf", "$.rate_per_s"),
        ("rate_per_s = nan", "$.rate_per_s"),
        ("timeout_s = inf", "$.timeout_s"),
        ("temperature = inf", "$.temperature"),
        ("seed = -1", "$.seed"),
        ("[headers]\n'a b' = 'x'", "header 'a b': not allowed"),
        ('[headers]\nA = "secret\\nB: c"', "header 'A': not allowed"),
        ('[headers]\nA = "é"', "header 'A': not allowed"),
        (f"model = {DEEP.decode()}", "nested too deeply"),
    ],
)
def test_a_load_that_cannot_be_driven_is_refused_when_it_is_read(tmp_path, text, problem):
    path = tmp_path / "load.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(BadInput) as error:
        read_load(path)
    assert problem in str(error.value)
    assert "secret" not in str(error.value)
    assert "Keys are" not in str(error.value)


def test_the_keys_of_a_load_are_listed_only_to_who_used_another(tmp_path):
    path = tmp_path / "load.toml"
    path.write_text("request = 3")
    with pytest.raises(BadInput, match="Keys are kind, model, requests, "):
        read_load(path)


def test_the_largest_load_and_odd_but_good_headers_are_taken(tmp_path):
    path = tmp_path / "load.toml"
    headers = "Authorization = 'Bearer a b='\nX-Empty = ''\n'x!' = 'a\tb'"
    path.write_text(f"requests = 999992\nbursts = 1\n[headers]\n{headers}\n")
    assert read_load(path).headers["x!"] == "a\tb"


@pytest.mark.parametrize(
    "piece",
    [
        text_event("a", 10**26),
        text_event("a", 2**63),
        text_event("a", -(10**26)),
        event(tracekit={"arrival_ns": 10**26}),
        event(tracekit={"token_ns": [10**26]}),
        event(usage={"prompt_tokens_details": {"cached_tokens": 10**26}}),
        event(sglext={"spec_tokens_details": {"spec_verify_ct": 10**26}}),
        b'data: {"error": ' + DEEP + b"\n\n",
    ],
)
def test_an_answer_that_no_table_can_hold_is_a_failed_request(piece):
    load = Load(requests=1, bursts=1, prompt_tokens=8, output_tokens=4)
    answer = Answer([(0, piece), (0, text_event("b", 2, "length")), (0, DONE)])
    with serving(lambda _n, _b: answer) as server:
        driven = drive(load, server.url, phase="traced")
    (row,) = driven.records.to_dicts()
    assert (row["status"], row["problem"]) == ("failed", "malformed answer")


def test_pages_nested_without_end_are_a_sentence():
    load = Load(requests=1, bursts=1)
    pages = {"v1/models": DEEP, "server_info": DEEP, "start_profile": DEEP}
    with serving(lambda _n, _b: Answer(), **pages) as server:
        with pytest.raises(TracekitError, match="/v1/models: its answer is nested too deeply"):
            speaks_openai(server.url)
        with pytest.raises(TracekitError, match="names no model"):
            drive(load, server.url, phase="traced")
        record = what_ran(["true"], {})
        take_server(record, server.url, {})
        assert record.server == {}
        assert post(server.url, "/start_profile", {}, timeout_s=5, headers={}) is None


@pytest.mark.usefixtures("sessions", "nothing_left")
def test_an_error_of_tracekit_itself_is_no_complete_capture(tmp_path, monkeypatch):
    def fail(self, server):
        raise ZeroDivisionError

    monkeypatch.setattr(ToySession, "open_window", fail)
    wanted = Wanted(
        command=(*TOY, "--workers", "0"),
        directory=tmp_path / "run",
        environment=dict(os.environ),
        profiler="toy",
        hooks=(),
        has_load=False,
    )
    with pytest.raises(ZeroDivisionError):
        capture(wanted, Told())
    assert read_what_ran(tmp_path / "run" / "capture.json").outcome == "failed"


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://h:99999/", "http://h:x/", "http://h:0/", "http://", "ftp://h/"]
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(BadInput, match="is no URL"):
        Readiness(url=url)


def test_urls_of_all_kinds_are_taken():
    for url in ("http://[::1]:80/health", "https://h", "http://127.0.0.1:65535/a?b=c"):
        assert Readiness(url=url).is_given


@pytest.mark.usefixtures("sessions", "nothing_left")
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--duration", "nan"), "--duration: is no number"),
        (("--grace", "nan"), "--grace: is no number"),
        (("--ready-timeout", "nan"), "--ready-timeout: is no number"),
        (("--load-cmd", ""), "--load-cmd: is empty"),
        (("--ready-cmd", " "), "--ready-cmd: is empty"),
        (("--ready-log", ""), "--ready-log: is empty"),
        (("--warm-up", "1000000"), "--warm-up: at most 1,000,000 requests"),
        (("-o", os.fsdecode(b"caf\xe9")), "caf\\udce9: is no UTF-8"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_starts(tmp_path, options, problem, capsys):
    flag = tmp_path / "launched"
    words = ("--profiler", "toy", "--no-hooks", *options, "--", "touch", str(flag))
    assert main(["capture", "-o", str(tmp_path / "run"), *words]) == 2
    err = capsys.readouterr().err
    assert problem in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == []
