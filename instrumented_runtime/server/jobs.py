"""One request over HTTP on its way through the engine's thread, and what it yields."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from instrumented_runtime.request import Request
from instrumented_runtime.server.stop_strings import StopStrings
from instrumented_runtime.server.tokenizer import text_of

FinishReason = Literal["length", "stop", "abort"]


@dataclass(frozen=True, slots=True)
class End:
    """How an answer ended.

    Attributes:
        finish_reason: `stop` for a stop string.
        num_tokens: New ones, those of the stop string included.
        num_verifies: Forwards that verified drafts for it.
        cached_tokens: Of the prompt, found in the prefix cache.
    """

    finish_reason: FinishReason
    num_tokens: int
    num_verifies: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step yielded for an answer.

    Attributes:
        text: To show now; what may be the beginning of a stop string comes later.
        token_ns: When the host learnt each new token since the last chunk.
        end: If it ends here.
    """

    text: str
    token_ns: tuple[int, ...]
    end: End | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Why there is no answer, or no more of it.

    Attributes:
        status: Of HTTP, if nothing was sent yet.
        message: One sentence.
    """

    status: int
    message: str


Event = Chunk | Failed


@dataclass(slots=True, eq=False)
class Job:
    """A request, and where its events go.

    Attributes:
        request: What the engine gets; its number and arrival are set when it arrives.
        deliver: Takes an event; called by the HTTP side's own thread.
        stop: Watches the text.
        rid: The client's name for it. Those that arrive at one moment are served in its order.
        asked_ns: When it is to arrive; when it is received if None.
        number: Counts jobs as they are received.
        is_over: Whether its last event is made.
    """

    request: Request
    deliver: Callable[[Event], None]
    stop: StopStrings = field(default_factory=StopStrings)
    rid: str = ""
    asked_ns: int | None = None
    number: int = 0
    is_over: bool = False
    _num_taken: int = 0
    _times: list[int] = field(default_factory=list)

    @property
    def order(self) -> tuple[int, str, int]:
        """Where it stands among jobs that come."""
        return (self.request.arrival_ns, self.rid, self.number)

    def news(self, now_ns: int) -> Chunk | None:
        """Return what the last step yielded; None if nothing is to be shown."""
        request = self.request
        tokens = request.output[self._num_taken :]
        if not tokens and not request.is_finished:
            return None
        text, is_stopped = self.stop.feed(text_of(tokens, is_first=not self._num_taken))
        self._num_taken += len(tokens)
        self._times += [now_ns] * len(tokens)
        end = None
        if is_stopped or request.finish_reason is not None:
            if not is_stopped:
                text += self.stop.rest()
            reason = "stop" if is_stopped else request.finish_reason
            end = self._end(reason or "abort")
        elif not text:
            return None
        times, self._times = tuple(self._times), []
        return Chunk(text, times, end)

    def _end(self, reason: FinishReason) -> End:
        self.is_over = True
        request = self.request
        return End(reason, self._num_taken, request.num_verifies, request.cached_tokens)
