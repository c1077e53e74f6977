"""`/start_profile` and `/stop_profile`, as SGLang, vLLM and our own server have them."""

from collections.abc import Mapping
from typing import Any

import httpx

from tracekit.errors import TracekitError

_SHOWN = 300


class NoEndpoint(TracekitError):
    """The server has no such path."""


def post(
    base_url: str | None,
    path: str,
    body: Mapping[str, Any],
    *,
    timeout_s: float,
    headers: Mapping[str, str],
) -> Any:  # noqa: ANN401
    """POST a JSON body and return what the answer holds, None if that is no JSON.

    Args:
        base_url: Of the server; None if it answers no HTTP.
        path: Begins with `/`.
        body: Sent as JSON.
        timeout_s: How long the answer may take: a server may answer only when files are written.
        headers: To send with it, the server's key among them.

    Raises:
        NoEndpoint: The server has no such path, or is none.
        TracekitError: It refused, or did not answer.
    """
    if base_url is None:
        raise NoEndpoint(path, "the command is no HTTP server", "Choose another profiler")
    url = f"{base_url}{path}"
    try:
        # No proxy of the environment stands between us and a server we started.
        answer = httpx.post(
            url, json=dict(body), headers=dict(headers), timeout=timeout_s, trust_env=False
        )
    except httpx.TimeoutException:
        raise TracekitError(
            url, f"did not answer within {timeout_s:g} s", "Allow more with write_timeout=SECONDS"
        ) from None
    except httpx.HTTPError as error:
        raise TracekitError(
            url, f"did not answer ({error})", "See the last lines of server.log"
        ) from None
    if answer.status_code in (404, 405):
        raise NoEndpoint(url, "is not there", "Choose another profiler")
    if answer.status_code in (401, 403):
        remedy = "Give its key under [headers] of --load FILE (docs/load.md)"
        raise TracekitError(url, f"answered {answer.status_code}: it wants a key", remedy)
    if answer.is_error:
        said = " ".join(answer.text.split())[:_SHOWN]
        raise TracekitError(
            url, f"answered {answer.status_code}: {said or 'nothing'}", "See server.log"
        )
    try:
        return answer.json()
    except (ValueError, RecursionError):
        return None
