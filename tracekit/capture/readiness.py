"""When a server is ready, and where it answers."""

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from tracekit.capture.processes import Tree
from tracekit.capture.server_log import ServerLog
from tracekit.capture.stages import Observer
from tracekit.errors import BadInput, TracekitError
from tracekit.manifest import redacted_command

# Loading a large model from a network disk takes tens of minutes.
DEFAULT_TIMEOUT_S = 1800.0
PATHS = ("/health", "/v1/models")

_LOOK_EVERY_S = 0.1
# Of a port that may speak another protocol and never answer.
_ANSWER_WITHIN_S = 2.0
# A health check may generate a token.
_OWN_URL_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """How to tell that a server is ready: one of the three, or by its listening port.

    Attributes:
        url: Answers with a status below 400.
        log: Is found in a line that the server prints.
        command: A shell command that returns 0.
        timeout_s: After which the server is given up.
    """

    url: str | None = None
    log: str | None = None
    command: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        """Refuse what can never be met."""
        given = [value for value in (self.url, self.log, self.command) if value is not None]
        if len(given) > 1:
            raise BadInput("--ready-…", "was given twice", "Say one thing that tells it is ready")
        for option, text in (("--ready-log", self.log), ("--ready-cmd", self.command)):
            if text is not None and not text.strip():
                raise BadInput(option, "is empty", "Say what tells that the server is ready")
        if self.url is not None and not _is_url(self.url):
            remedy = "Give one such as http://127.0.0.1:8000/health"
            raise BadInput(redacted_command(self.url), "is no URL", remedy)
        if self.log is not None:
            self.pattern()

    @property
    def is_given(self) -> bool:
        """Whether the user said how."""
        return (self.url, self.log, self.command) != (None, None, None)

    def pattern(self) -> re.Pattern[str] | None:
        """Return what is awaited in the log.

        Raises:
            BadInput: It is no regular expression.
        """
        try:
            return None if self.log is None else re.compile(self.log)
        except re.error as error:
            raise BadInput(
                self.log or "", f"is no regular expression: {error}", "Correct --ready-log"
            ) from error


class NotReady(TracekitError):
    """The server ended, or did not become ready in time."""


def wait_until_ready(
    readiness: Readiness,
    tree: Tree,
    log: ServerLog,
    observer: Observer,
    blocking: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> str | None:
    """Wait until a server is ready; return where it answers, None if it is no HTTP server.

    Without a readiness of the user's, each port on which the tree listens is asked for `/health`
    and `/v1/models`, and is where the server answers once one of them has status 200.

    Args:
        readiness: How to tell.
        tree: The server.
        log: What it prints.
        observer: Is told what was tried last.
        blocking: Context for what the user gave, which may take long to answer.

    Raises:
        NotReady: It ended before, or the time is over; says what was tried and what came of it.
    """
    looks = _looks(readiness, tree, log, blocking)
    start = time.monotonic()
    tried = "nothing"
    for is_ready, tried in looks:
        if is_ready:
            return _base_url(readiness, tree)
        if tree.has_failed():
            raise NotReady("server", _ended(tree), "See its last lines")
        waited = time.monotonic() - start
        if waited > readiness.timeout_s:
            problem = f"is not ready after {readiness.timeout_s:g} s: {tried}"
            raise NotReady("server", problem, "See its last lines, --ready-url, --ready-timeout")
        observer.at(tried)
        time.sleep(_LOOK_EVERY_S)
    raise AssertionError(tried)


def answers(base_url: str) -> dict[str, int | str]:
    """Return what a server says to each of `PATHS`: a status, or why there is none."""
    found: dict[str, int | str] = {}
    for path in PATHS:
        found[path] = _status(f"{base_url}{path}", _ANSWER_WITHIN_S)
        if found[path] == httpx.codes.OK:
            break
    return found


def speaks_openai(base_url: str) -> bool:
    """Return whether a server lists models as OpenAI's interface does.

    Raises:
        TracekitError: What it answers cannot be taken in.
    """
    try:
        with _client(_ANSWER_WITHIN_S) as client:
            answer = client.get(f"{base_url}/v1/models")
        return answer.status_code == httpx.codes.OK and isinstance(answer.json()["data"], list)
    except RecursionError as error:
        remedy = "Use --load-cmd or --no-load"
        url = f"{base_url}/v1/models"
        raise TracekitError(url, "its answer is nested too deeply", remedy) from error
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False


def _is_url(text: str) -> bool:
    try:
        httpx.URL(text)
        parts = urlsplit(text)
        # To read the port checks it.
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        return False


def _looks(
    readiness: Readiness,
    tree: Tree,
    log: ServerLog,
    blocking: Callable[[], AbstractContextManager[None]],
) -> Iterator[tuple[bool, str]]:
    """Look again each time the next is asked for: whether it is ready, and what was tried."""
    while True:
        if readiness.url is not None:
            with blocking():
                status = _status(readiness.url, _OWN_URL_WITHIN_S)
            is_good = isinstance(status, int) and status < httpx.codes.BAD_REQUEST
            yield is_good, f"{redacted_command(readiness.url)}: {status}"
        elif readiness.log is not None:
            yield log.has_come(), f"no line matches {readiness.log}"
        elif readiness.command is not None:
            with blocking():
                code = _shell(readiness.command)
            yield code == 0, f"`{redacted_command(readiness.command)}` returned {code}"
        else:
            yield _look_at_ports(tree)


def _look_at_ports(tree: Tree) -> tuple[bool, str]:
    said = []
    for url in _urls(tree):
        found = answers(url)
        if httpx.codes.OK in found.values():
            return True, url
        said.append(f"{url}: " + ", ".join(f"{path} {what}" for path, what in found.items()))
    return False, "; ".join(said) or "no process of it listens on a TCP port"


def _base_url(readiness: Readiness, tree: Tree) -> str | None:
    if readiness.url is not None:
        parts = urlsplit(readiness.url)
        return f"{parts.scheme}://{parts.netloc}"
    return next((url for url in _urls(tree) if httpx.codes.OK in answers(url).values()), None)


def _urls(tree: Tree) -> list[str]:
    return [f"http://{host}:{port}" for host, port in tree.listening()]


def _shell(command: str) -> int | str:
    # Output would come between the lines of progress, and a prompt would wait for ever.
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command,
            shell=True,
            check=False,
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            timeout=_OWN_URL_WITHIN_S,
        )
    except subprocess.TimeoutExpired:
        return f"nothing in {_OWN_URL_WITHIN_S:g} s"
    return done.returncode


def _status(url: str, timeout_s: float) -> int | str:
    try:
        with _client(timeout_s) as client, client.stream("GET", url) as answer:
            return answer.status_code
    except httpx.TimeoutException:
        return "no answer"
    except httpx.ConnectError:
        return "refused"
    except (httpx.HTTPError, httpx.InvalidURL):
        return "no HTTP"


def _client(timeout_s: float) -> httpx.Client:
    # A proxy of the environment is for the world outside, not for this server; its certificate is
    # its own, and nothing secret is sent.
    return httpx.Client(timeout=timeout_s, trust_env=False, verify=False)


def _ended(tree: Tree) -> str:
    return f"ended before it was ready, {exit_words(tree.exit_code())}"


def exit_words(code: int | None) -> str:
    """Return how a process ended, in words."""
    if code is None:
        return "still running"
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
