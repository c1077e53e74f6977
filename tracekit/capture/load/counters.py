"""A server's own counters of speculation, read before and after a load."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import msgspec

ServerKind = Literal["ours", "sglang", "vllm", "unknown"]
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)
_COUNTERS = {
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "sglang:spec_verify_calls_total",
    "sglang:generation_tokens_total",
}


@dataclass(frozen=True, slots=True)
class Counters:
    """What a server says of itself at one moment.

    Attributes:
        kind: Which server it is, by what it answers.
        info: Its `/server_info`, empty if it has none.
        metrics: Its `/metrics` that matter here, summed over labels; None without that page.
    """

    kind: ServerKind = "unknown"
    info: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] | None = None

    @property
    def is_virtual(self) -> bool:
        """Whether it runs on virtual time and stamps what it sends."""
        return self.info.get("clock") == "virtual"


async def counters(client: httpx.AsyncClient) -> Counters:
    """Return a server's counters; what it does not have is left out."""
    info = await _info(client)
    metrics = await _metrics(client)
    if "num_verifies" in info:
        return Counters("ours", info, metrics)
    if "internal_states" in info:
        return Counters("sglang", info, metrics)
    is_vllm = metrics is not None and any(name.startswith("vllm:") for name in metrics)
    return Counters("vllm" if is_vllm else "unknown", info, metrics)


async def _info(client: httpx.AsyncClient) -> dict[str, Any]:
    try:
        response = await client.get("/server_info", timeout=30)
        told = msgspec.json.decode(response.content) if response.status_code == 200 else {}
    except (httpx.HTTPError, msgspec.DecodeError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


async def _metrics(client: httpx.AsyncClient) -> dict[str, float] | None:
    try:
        response = await client.get("/metrics", timeout=30)
    except httpx.HTTPError:
        return None
    if response.status_code != 200:
        return None
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(response.text):
        if name.startswith(("vllm:", "sglang:")):
            sums[name] = sums.get(name, 0.0) + float(value) if name in _COUNTERS else 0.0
    return sums


def acceptance(
    before: Counters, after: Counters, verifies: int | None, output_tokens: int | None
) -> tuple[float | None, str]:
    """Return tokens per verify over a load, the bonus token included, and where it is from.

    An average over a server's lifetime is no figure of a load: it is never taken.

    Args:
        before: Counters when the load began.
        after: When it had ended.
        verifies: Verify steps of its requests, if the server tells them per request.
        output_tokens: Tokens of the same requests.

    Returns:
        The length, or None; the counters it is the difference of, or why there is none.
    """
    match after.kind:
        case "ours":
            steps = _difference(before.info, after.info, "num_verifies")
            tokens = _difference(before.info, after.info, "num_verified_tokens")
            return _ratio(tokens, steps, "num_verified_tokens ÷ num_verifies of /server_info")
        case "vllm":
            return _of_vllm(before, after)
        case "sglang":
            return _of_sglang(before, after, verifies, output_tokens)
    return None, "the server has no counters of speculation that are known here"


def _of_vllm(before: Counters, after: Counters) -> tuple[float | None, str]:
    names = ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total")
    if after.metrics is None or names[0] not in after.metrics:
        return 1.0, "no speculative decoding: /metrics counts no drafts"
    drafts, accepted = (_difference(before.metrics or {}, after.metrics, name) for name in names)
    if not drafts or accepted is None:
        return None, "no drafts were counted during the load"
    return 1 + accepted / drafts, "1 + num_accepted_tokens ÷ num_drafts of /metrics"


def _of_sglang(
    before: Counters, after: Counters, verifies: int | None, output_tokens: int | None
) -> tuple[float | None, str]:
    if "speculative_algorithm" in after.info and after.info["speculative_algorithm"] is None:
        return 1.0, "no speculative decoding: /server_info names no algorithm"
    if verifies and output_tokens:
        return output_tokens / verifies, "completion tokens ÷ spec_verify_ct of the answers"
    steps = "sglang:spec_verify_calls_total"
    if before.metrics is not None and after.metrics and steps in after.metrics:
        tokens = _difference(before.metrics, after.metrics, "sglang:generation_tokens_total")
        calls = _difference(before.metrics, after.metrics, steps)
        return _ratio(
            tokens, calls, "generation_tokens_total ÷ spec_verify_calls_total of /metrics"
        )
    return None, "avg_spec_accept_length is an average over the server's lifetime"


def _difference(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> float | None:
    """Return how far a counter moved; None if it is not there or was set back."""
    if not isinstance(after.get(name), int | float):
        return None
    moved = float(after[name]) - float(before.get(name) or 0)
    return moved if moved >= 0 else None


def _ratio(tokens: float | None, steps: float | None, source: str) -> tuple[float | None, str]:
    if tokens is None or not steps:
        return None, f"no verify was counted during the load ({source})"
    return tokens / steps, source
