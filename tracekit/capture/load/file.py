"""What load to drive: a small stated default, or a TOML file."""

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tracekit.errors import BadInput, os_problem

MAX_REQUESTS = 1_000_000
# All prompts are made before the first is sent, and are held until the last.
MAX_PROMPT_TOKENS = 200_000_000
_MAX_LENGTH = 10_000_000
# What a request can carry: a name of RFC 9110, and a value that needs no encoding.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"([!-~]([\t -~]*[!-~])?)?")

Positive = Annotated[int, msgspec.Meta(ge=1)]
# Not a tuple of two: in a union with a constrained number, msgspec 0.23 frees it once too often.
Lengths = Positive | list[Positive]


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A load; its defaults are the small load that is driven if nothing else is asked for.

    Three bursts of eight requests, all eight at once: each burst has a time in which every request
    decodes, which is where cycles are measured.

    Attributes:
        kind: Which endpoint: `/v1/completions` or `/v1/chat/completions`.
        model: Name for the request; None takes the first of `/v1/models`.
        requests: Requests of one burst.
        bursts: How many bursts; a burst begins when the one before it is complete.
        concurrency: Clients, each of which sends its next request when its last one is complete; of
            a rate, how many may be under way at most. None is as many as there are requests.
        rate_per_s: Poisson arrivals at this mean rate; None is a closed loop.
        prompt_tokens: Length of prompts: one, or the least and the greatest (uniform).
        output_tokens: Limit of outputs, likewise.
        shared_prefix_tokens: So many tokens at the start are the same in every prompt.
        prompts: `words`: one common English word a token, which holds roughly for real tokenizers;
            `tokens`: token numbers, exact, for completions only.
        token_range: Token numbers to draw from, the second excluded.
        seed: Of lengths, contents and arrivals.
        ignore_eos: Outputs run to their limit.
        temperature: Of sampling; 0 is greedy.
        warm_up: Requests of the warm-up, as many at once as `concurrency` says; 0 is none.
        flush_cache: Flush the prefix cache before each phase and burst, where the server can.
        timeout_s: A request that takes longer has failed.
        headers: HTTP headers of every request.
    """

    kind: Literal["completions", "chat"] = "completions"
    model: str | None = None
    requests: Positive = 8
    bursts: Positive = 3
    concurrency: Positive | None = None
    rate_per_s: Annotated[float, msgspec.Meta(ge=1e-3, le=1e9)] | None = None
    prompt_tokens: Lengths = 128
    output_tokens: Lengths = 64
    shared_prefix_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    prompts: Literal["words", "tokens"] = "words"
    token_range: tuple[Positive, Positive] = (100, 500)
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    ignore_eos: bool = True
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1e3)] = 0.0
    warm_up: Annotated[int, msgspec.Meta(ge=0)] = 8
    flush_cache: bool = True
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 600.0
    headers: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Refuse what no field alone can tell; msgspec turns it into a message with the path."""
        for lengths in (self.prompt_tokens, self.output_tokens):
            if isinstance(lengths, list) and (len(lengths) != 2 or lengths[0] > lengths[1]):
                raise ValueError(f"a range of lengths is [least, greatest], not {lengths}")
        if self.token_range[0] >= self.token_range[1]:
            raise ValueError("token_range is [first, one past the last]")
        if self.kind == "chat" and self.prompts == "tokens":
            raise ValueError('token numbers are no chat message: use prompts = "words"')
        if self.shared_prefix_tokens >= bounds(self.prompt_tokens)[0]:
            raise ValueError("shared_prefix_tokens leaves the shortest prompt nothing of its own")
        self._check_size()
        for name, value in self.headers.items():
            # The value may be a secret and is not shown.
            if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
                raise ValueError(f"header {name!r}: not allowed in HTTP, its name or its value")

    def _check_size(self) -> None:
        total = self.requests * self.bursts + self.warm_up
        if total > MAX_REQUESTS:
            raise ValueError(f"at most {MAX_REQUESTS:,} requests in all, not {total:,}")
        longest = bounds(self.prompt_tokens)[1]
        if max(longest, bounds(self.output_tokens)[1]) > _MAX_LENGTH:
            raise ValueError(f"a prompt or output has at most {_MAX_LENGTH:,} tokens")
        if total * longest > MAX_PROMPT_TOKENS:
            raise ValueError(f"at most {MAX_PROMPT_TOKENS:,} prompt tokens in all requests")


def bounds(lengths: Lengths) -> tuple[int, int]:
    """Return the least and the greatest of a length that is one number or a range."""
    return (lengths, lengths) if isinstance(lengths, int) else (lengths[0], lengths[1])


def read_load(path: Path) -> Load:
    """Return the load that a TOML file describes; what it leaves out has the default.

    Raises:
        BadInput: It cannot be read, has a key that is none, or a value that makes no load.
    """
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Load)
    except OSError as error:
        problem = os_problem(error)
        raise BadInput(path, f"cannot be read: {problem}", "Check the path") from error
    except RecursionError as error:
        raise BadInput(path, "is no load: nested too deeply", "See docs/load.md") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        is_unknown = "unknown field" in str(error)
        known = ", ".join(Load.__struct_fields__)
        remedy = f"Keys are {known}" if is_unknown else "Correct it (docs/load.md)"
        raise BadInput(path, f"is no load: {error}", remedy) from error
