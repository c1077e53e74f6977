"""When a server counts as ready, and what is said of one that never is."""

import contextlib
import os
import re

import pytest
from toy_session import TOY
from watching import Told, read, soon

from tracekit.capture.processes import Tree
from tracekit.capture.readiness import NotReady, Readiness, speaks_openai, wait_until_ready
from tracekit.capture.server_log import ServerLog
from tracekit.errors import BadInput


@contextlib.contextmanager
def launched(folder, *options, **readiness):
    """What `wait_until_ready` needs of a toy with these options; gone afterwards."""
    wanted = Readiness(**readiness)
    tree = Tree([*TOY, *options], dict(os.environ))
    log = ServerLog(tree.output, folder / "server.log", str, wanted.pattern())
    try:
        yield wanted, tree, log, Told()
    finally:
        tree.kill()
        log.close()


def port_of(log):
    return re.search(r"listening on (\d+)", "\n".join(log.last_lines()))[1]


@pytest.mark.parametrize("paths", ["/health", "/v1/models"])
def test_without_a_word_the_port_is_found_and_asked_for_health_then_models(tmp_path, paths):
    with launched(tmp_path, "--paths", paths) as (wanted, tree, log, observer):
        url = wait_until_ready(wanted, tree, log, observer)
        assert url == f"http://127.0.0.1:{port_of(log)}"
        assert speaks_openai(url) == (paths == "/v1/models")


def test_a_server_that_answers_503_is_waited_for(tmp_path):
    with launched(tmp_path, "--ready-after", "0.4") as (wanted, tree, log, observer):
        wait_until_ready(wanted, tree, log, observer)
        assert any("/health 503" in words for words in observer.words)


def test_a_url_is_ready_below_400_and_says_where_the_server_is(tmp_path):
    with launched(tmp_path, "--paths", "/up") as (_, tree, log, observer):
        soon(lambda: "listening" in read(tmp_path / "server.log"))
        base = f"http://127.0.0.1:{port_of(log)}"
        assert wait_until_ready(Readiness(url=f"{base}/up?a=b"), tree, log, observer) == base
        with pytest.raises(NotReady, match="/down: 404"):
            wait_until_ready(Readiness(url=f"{base}/down", timeout_s=0.2), tree, log, observer)


def test_a_line_of_the_log_is_enough_for_a_server_without_http(tmp_path):
    options = {"log": r"^Uvicorn running on \S+$"}
    with launched(tmp_path, "--say", "Uvicorn running on x", "--no-port", **options) as started:
        assert wait_until_ready(*started) is None


def test_a_command_is_asked_until_it_returns_0(tmp_path):
    flag = tmp_path / "flag"
    options = {"command": f"test -e {flag} || {{ touch {flag}; exit 3; }}"}
    with launched(tmp_path, "--no-port", **options) as (wanted, tree, log, observer):
        assert wait_until_ready(wanted, tree, log, observer) is None
        assert any("returned 3" in words for words in observer.words)


@pytest.mark.parametrize(
    ("options", "tried"),
    [
        (["--no-port"], "no process of it listens on a TCP port"),
        (["--paths", "/x"], r"http://127.0.0.1:\d+: /health 404, /v1/models 404"),
    ],
)
def test_a_server_that_is_never_ready_is_told_with_what_was_tried(tmp_path, options, tried):
    with (
        launched(tmp_path, *options, timeout_s=0.6) as started,
        pytest.raises(NotReady, match=rf"is not ready after 0.6 s: {tried}"),
    ):
        wait_until_ready(*started)


def test_a_server_that_ends_before_it_is_ready_is_told_with_its_exit_code(tmp_path):
    with (
        launched(tmp_path, "--exit", "3") as started,
        pytest.raises(NotReady, match="ended before it was ready, with exit code 3"),
    ):
        wait_until_ready(*started)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"url": "localhost:8000/health"}, "is no URL"),
        ({"log": "("}, "is no regular expression"),
        ({"url": "http://h/", "command": "true"}, "given twice"),
    ],
)
def test_a_readiness_that_can_never_come_is_refused(options, match):
    with pytest.raises(BadInput, match=match):
        Readiness(**options)
