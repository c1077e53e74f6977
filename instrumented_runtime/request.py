"""A request on its way through the engine: what was asked, where it stands, what came out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True, eq=False)
class Request:
    """One prompt and the tokens generated for it; two requests are equal only if they are one.

    Attributes:
        request_id: What the one who asks calls it.
        prompt: Its tokens, at least one.
        max_new_tokens: After how many new tokens it ends, at the latest.
        stop_tokens: Each ends it, and is the last of its output.
        arrival_ns: When it came in.
        row: Its row of the request tables; 0, the padding row, while it has none.
        pages: Of its tokens in order, page by page, those it shares with the prefix cache first.
        cached_tokens: Prompt tokens whose keys and values were found in the prefix cache.
        computed_tokens: Prompt tokens handed to a forward so far, cached ones included.
        output: The new tokens that the host knows of; the device may be further.
        num_verifies: Forwards that verified drafts for it.
        first_token_ns: When the host learnt its first new token.
        finished_ns: When the host learnt its last.
        is_added: Whether an engine has it or had it.
        finish_reason: `stop` also if the stop token is the last that it may have.
    """

    request_id: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    stop_tokens: frozenset[int] = frozenset()
    arrival_ns: int = 0
    row: int = 0
    pages: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    computed_tokens: int = 0
    output: list[int] = field(default_factory=list)
    num_verifies: int = 0
    first_token_ns: int | None = None
    finished_ns: int | None = None
    is_added: bool = False
    finish_reason: Literal["length", "stop", "abort"] | None = None

    def __post_init__(self) -> None:
        """Refuse what no forward can answer.

        Raises:
            ValueError: Names the field and what is allowed.
        """
        prompt, stop = self.prompt, self.stop_tokens
        if not _holds_whole_numbers(prompt, tuple) or not prompt:
            raise ValueError("prompt: is not allowed; give a tuple of at least one whole number")
        if type(self.max_new_tokens) is not int or self.max_new_tokens < 1:
            raise ValueError(
                f"max_new_tokens: {self.max_new_tokens!r} is not allowed; give a whole number ≥ 1"
            )
        if not _holds_whole_numbers(stop, frozenset):
            raise ValueError("stop_tokens: is not allowed; give a frozenset of whole numbers")

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def take(self, tokens: Sequence[int], now_ns: int) -> None:
        """Append what a step yielded, as far as it is wanted.

        A request that is finished takes nothing: the step after its last was scheduled before the
        host knew, and still yields tokens for it.
        """
        if self.is_finished:
            return
        for token in tokens:
            if self.first_token_ns is None:
                self.first_token_ns = now_ns
            self.output.append(token)
            if token in self.stop_tokens:
                self.finish_reason = "stop"
            elif len(self.output) == self.max_new_tokens:
                self.finish_reason = "length"
            else:
                continue
            self.finished_ns = now_ns
            return


def _holds_whole_numbers(
    tokens: object, kind: type[tuple[int, ...]] | type[frozenset[int]]
) -> bool:
    return isinstance(tokens, kind) and all(type(token) is int for token in tokens)
