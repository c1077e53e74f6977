"""Secrets planted everywhere a capture looks are in no byte of what it leaves behind."""

import gzip
import json
import os
import subprocess
import sys
import urllib.parse
from pathlib import Path

import msgspec
import polars as pl
import pytest
from sse_server import Answer, serving

from tracekit.capture.load.client_metrics import client_metrics
from tracekit.capture.load.driving import drive, read_load
from tracekit.capture.redaction import Redactor
from tracekit.capture.what_ran import clean_reports, take_reports, what_ran, write_what_ran
from tracekit.formats import read_trace
from tracekit.formats.store import write_run

# No word of it is long enough to be a secret by itself.
QUOTED = 'my "pet" is 1 cat'
# One secret each, so that a failure names its place.
ARGV = [
    "env",
    "HF_TOKEN=secret-argv-variable",
    "python",
    "-m",
    "serve",
    "--api-key",
    "secret-argv-flag",
    "--admin-key=secret-argv-equals",
    "--api-keys",
    "secret-argv-first",
    "secret-argv-second",
    "--password",
    "secret argv spaces",
    "--header",
    "Authorization: Bearer secret-argv-bearer",
    "--config",
    json.dumps(
        {"a": [{"api_key": "secret-argv-json"}], "passwords": ["secret-argv-list"], "token": QUOTED}
    ),
    "--endpoint",
    "https://me:secret-argv-login@host/x?sig=secret-argv-query&n=1",
    "sh -c 'run --token secret-argv-nested'",
    "--port",
    "30000",
]
ENVIRONMENT = {
    "OPENAI_API_KEY": "secret-env-key",
    "DB_PASSWORD": "secret env spaces",
    "AWS_SECRET_ACCESS_KEY": "secret/env+slash=",
    "PROXY": "http://me:secret-env-login@proxy:3128/?t=secret-env-query",
    "VLLM_API_KEY": "secret-env-vllm",
    "GPU_MAX_HW_QUEUES": "4",
}
HEADERS = {"Authorization": "Bearer secret-header-bearer", "X-Tenant": "secret-header-tenant"}
SECRETS = [
    QUOTED,
    "secret-argv-variable",
    "secret-argv-flag",
    "secret-argv-equals",
    "secret-argv-first",
    "secret-argv-second",
    "secret argv spaces",
    "secret-argv-bearer",
    "secret-argv-json",
    "secret-argv-list",
    "secret-argv-login",
    "secret-argv-query",
    "secret-argv-nested",
    "secret-env-key",
    "secret env spaces",
    "secret/env+slash=",
    "secret-env-login",
    "secret-env-query",
    "secret-env-vllm",
    "secret-header-bearer",
    "secret-header-tenant",
    "secret-trace-env",
    "secret-trace-argv",
]


def texts_of(folder):
    """Every byte under a folder as text, compressed and columnar files also decoded."""
    for path in sorted(Path(folder).rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        yield path, data.decode(errors="replace")
        if path.suffix == ".gz":
            yield path, gzip.decompress(data).decode(errors="replace")
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path)
            yield path, json.dumps(frame.to_dicts(), default=str, ensure_ascii=False)


def leaks(folder, secrets=SECRETS):
    forms = {
        form: secret
        for secret in secrets
        for form in (secret, urllib.parse.quote(secret, safe=""), json.dumps(secret)[1:-1])
    }
    return {
        (str(path.relative_to(folder)), secret)
        for path, text in texts_of(folder)
        for form, secret in forms.items()
        if form in text
    }


def everything():
    """All that was planted, as a careless server prints it: no names, other quotes."""
    yield f"args: {ARGV}"
    yield f"environment: {ENVIRONMENT} headers: {HEADERS}"
    yield json.dumps([ARGV, ENVIRONMENT, HEADERS])
    yield from (f"| {secret} |" for secret in SECRETS if "trace" not in secret)
    yield from (f"?x={urllib.parse.quote(s, safe='')}" for s in SECRETS if "trace" not in s)


@pytest.fixture
def redactor():
    return Redactor(ARGV, ENVIRONMENT, HEADERS)


def test_the_check_itself_finds_what_is_there(tmp_path):
    pl.DataFrame({"a": ["x secret-argv-flag" * 50]}).write_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"secret-env-key"))
    (tmp_path / "c.log").write_text("secret%20env%20spaces")
    assert leaks(tmp_path) == {
        ("a.parquet", "secret-argv-flag"),
        ("b.gz", "secret-env-key"),
        ("c.log", "secret env spaces"),
    }


def test_no_secret_is_left_in_a_run(tmp_path, redactor, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "formats")
    from rocpd_files import small_file

    run = tmp_path / "run"
    small_file(
        tmp_path / "results.db",
        command="python serve.py --api-key secret-trace-argv",
        environment={"HF_TOKEN": "secret-trace-env", "GPU_MAX_HW_QUEUES": "4"},
    ).save()
    write_run(read_trace([tmp_path / "results.db"]), run, force=False)
    (run / "server.log").write_text("\n".join(map(redactor.text, everything())))

    load_file = tmp_path / "load.toml"
    headers = "\n".join(f"{name} = {json.dumps(value)}" for name, value in HEADERS.items())
    load_file.write_text(f"requests = 2\nbursts = 1\nprompt_tokens = 8\n[headers]\n{headers}\n")
    load = read_load(load_file)
    echoed = f"401 for {HEADERS['X-Tenant']}, {HEADERS['Authorization']}".encode()
    with serving(lambda _n, _b: Answer(status=401, body=echoed)) as server:
        driven = drive(load, server.url, phase="traced")
    assert driven.records["http_status"].to_list() == [401, 401]
    driven.records.write_parquet(run / "requests.parquet")
    (run / "client.json").write_bytes(msgspec.json.encode({"traced": client_metrics(driven)}))

    hooks = run / "hooks"
    hooks.mkdir()
    report = {"pid": 7, "argv": ARGV, "patches": {"p": {"reason": " ".join(everything())}}}
    report |= {"environment": ENVIRONMENT, "versions": {"torch": "2.9"}}
    (hooks / "7.json").write_text(json.dumps(report))
    (hooks / "8.json").write_text('{"reason": "secret-argv-flag')
    record = what_ran(ARGV, ENVIRONMENT, load=load)
    take_reports(record, hooks)
    record.notes = list(everything())
    record.server = {"api_key": "secret-argv-flag", "device": "virtual", "name": "secret-env-key"}
    write_what_ran(record, run / "capture.json", redactor)
    clean_reports(hooks, redactor)

    assert leaks(run) == set()
    kept = msgspec.json.decode((run / "capture.json").read_bytes())
    assert kept["command"][-2:] == ["--port", "30000"]
    assert kept["command"][2:6] == ["python", "-m", "serve", "--api-key"]
    assert kept["environment"] == {"GPU_MAX_HW_QUEUES": "4"}
    assert kept["server"]["device"] == "virtual"
    assert kept["load"]["headers"] == ["Authorization", "X-Tenant"]
    assert kept["load"]["prompt_tokens"] == 8
    assert kept["versions"]["torch"] == "2.9"
    assert "7.json" in [path.name for path in hooks.iterdir()]


# Prints what it was started with, as careless servers do, then serves.
CARELESS = """
import os, sys, runpy
print(sys.argv, dict(os.environ))
print(*sys.argv, *os.environ.values(), sep="\\n", flush=True)
"""
SERVES = """
sys.argv = ["server", "--port", "0", "--markers", "off"]
runpy.run_module("instrumented_runtime.server", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["complete", "crashed"])
def test_no_secret_is_left_by_a_whole_capture(tmp_path, ends):
    load = tmp_path / "load.toml"
    headers = "\n".join(f"{name} = {json.dumps(value)}" for name, value in HEADERS.items())
    load.write_text(f"requests = 2\nbursts = 1\nprompt_tokens = 8\n[headers]\n{headers}\n")
    script = CARELESS + (SERVES if ends == "complete" else "sys.exit(3)")
    command = [Path(sys.executable).with_name("tracekit"), "capture", "-o", tmp_path / "run"]
    command += ["--load", load, "--env", "DB_PASSWORD=" + ENVIRONMENT["DB_PASSWORD"], "--"]
    command += [sys.executable, "-c", script, *ARGV[5:]]
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == (ends == "complete"), done.stderr
    log = (tmp_path / "run" / "server.log").read_text()
    assert "30000" in log.splitlines()
    assert "<redacted>" in log
    assert leaks(tmp_path / "run") == set()
    printed = done.stdout + done.stderr
    assert [secret for secret in SECRETS if secret in printed] == []
    if ends == "complete":
        assert (tmp_path / "run" / "requests.parquet").is_file()


def test_ordinary_lines_stay_as_they_are(redactor):
    lines = [
        "INFO: 127.0.0.1:5000 - POST /v1/completions 200 OK, max_tokens=64, 17 tokens/s",
        "Loading weights from /models/llama: 100%|####| 4/4 [00:03<00:00]",
        "python -m serve --port 30000 is ready",
    ]
    assert [redactor.text(line) for line in lines] == lines


def test_a_path_that_exists_and_short_words_are_no_secrets(tmp_path):
    redactor = Redactor(
        environment={"SSH_AUTH_SOCK": str(tmp_path), "AUTH": "no", "X_KEY": "x" * 9000}
    )
    assert redactor.text(f"no {tmp_path}") == f"no {tmp_path}"
    assert redactor.text("x" * 9000) == "<redacted>"
