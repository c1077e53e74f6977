"""Which tokens the next step computes: prompts in chunks first, else the next token of all."""

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from instrumented_runtime.pages import PagePool, PrefixCache
from instrumented_runtime.request import Request
from instrumented_runtime.scheduling.min_free_slots_delayer import MinFreeSlotsDelayer


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens `[start, end)` of a prompt."""

    request: Request
    start: int
    end: int

    @property
    def is_last(self) -> bool:
        return self.end == len(self.request.prompt)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes; chunks or decodes, or both.

    Attributes:
        chunks: In order of admission, at most one per request; only the last may not end its
            prompt.
        decode: Requests that get their next tokens, in order of admission; none has a chunk here.
        admitted: Requests of the chunks that got row and pages in this batch.
    """

    chunks: tuple[Chunk, ...]
    decode: tuple[Request, ...]
    admitted: tuple[Request, ...] = ()

    @property
    def kind(self) -> Literal["prefill", "decode", "mixed"]:
        if not self.chunks:
            return "decode"
        return "mixed" if self.decode else "prefill"


@dataclass(slots=True, kw_only=True, eq=False)
class Scheduler:
    """Admits requests first come first served and advances them when it schedules them.

    An overlapped engine asks for step N + 1 before it knows what step N yields, so nothing here
    depends on tokens: a request decodes until `finish` is called, that is one step too long when
    the engine is one step ahead. Row and pages are given whole at admission; nothing is preempted.

    Attributes:
        max_running: How many requests have a row, those being prefilled included.
        chunk_tokens: Prompt tokens that a step computes at most; decodes do not count.
        pool: Where pages come from.
        cache: Of the same pool; without one nothing is shared.
        delayer: Asked once a step, unless a prompt is partly computed.
        mix_decode: Whether running requests decode in a step that computes prompts.
        reserve_tokens: Room per request beyond prompt and new tokens: what is written ahead of what
            is known.
    """

    max_running: int
    chunk_tokens: int
    pool: PagePool
    cache: PrefixCache | None
    delayer: MinFreeSlotsDelayer
    mix_decode: bool
    reserve_tokens: int
    _waiting: deque[Request] = field(init=False, default_factory=deque)
    # Its prompt is partly computed; the next step goes on with it.
    _in_flight: Request | None = field(init=False, default=None)
    _running: list[Request] = field(init=False, default_factory=list)
    _free_rows: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """Refuse limits with which nothing would ever be scheduled.

        Raises:
            ValueError: Names the field and what is allowed.
        """
        for name, least in (("max_running", 1), ("chunk_tokens", 1), ("reserve_tokens", 0)):
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name}: {value} is not allowed; give a number ≥ {least}")
        if self.cache is not None and self.cache.pool is not self.pool:
            raise ValueError("cache: is of another pool; give one of the scheduler's own")
        # Row 0 is the padding row.
        self._free_rows = list(range(1, self.max_running + 1))

    @property
    def waiting(self) -> tuple[Request, ...]:
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Request, ...]:
        """Return the requests whose prompts are scheduled to the end, in order of admission."""
        return tuple(self._running)

    @property
    def num_allocatable(self) -> int:
        """Return how many more requests can have a row."""
        return len(self._free_rows)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: It needs more pages than there are.
        """
        limit = (self.pool.num_pages - 1) * self.pool.page_size
        if self._tokens_of(request) > limit:
            raise ValueError(
                f"request {request.request_id}: needs room for {self._tokens_of(request)} tokens "
                f"(prompt {len(request.prompt)}, new {request.max_new_tokens}, "
                f"reserve {self.reserve_tokens}); the pool holds {limit}"
            )
        self._waiting.append(request)

    def next_batch(self) -> Batch | None:
        """Return what to compute now, as if all scheduled before had been computed.

        A prompt scheduled to its end decodes from the next batch on. None if there is nothing.
        """
        decode = self.running
        may_admit = self._in_flight is not None or not self.delayer.should_delay(
            running_bs=len(decode),
            num_allocatable_reqs=self.num_allocatable,
            num_waiting_reqs=len(self._waiting),
        )
        chunks: list[Chunk] = []
        admitted: list[Request] = []
        budget = self.chunk_tokens
        if self._in_flight is not None:
            chunks.append(self._next_chunk(self._in_flight, budget))
            budget -= chunks[-1].end - chunks[-1].start
        while may_admit and budget and self._waiting and self._admits(self._waiting[0]):
            request = self._waiting.popleft()
            admitted.append(request)
            chunks.append(self._next_chunk(request, budget))
            budget -= chunks[-1].end - chunks[-1].start
        if chunks:
            return Batch(tuple(chunks), decode if self.mix_decode else (), tuple(admitted))
        return Batch((), decode) if decode else None

    def finish(self, request: Request) -> None:
        """Forget a request, wherever it stands, and free its row and pages.

        Steps scheduled already may still write to its pages, but before any step scheduled from now
        on, and to those that the cache keeps only what it takes to be there.

        Raises:
            ValueError: It is not here, or no longer.
        """
        if request is self._in_flight:
            self._in_flight = None
        elif request in self._running:
            self._running.remove(request)
        elif request in self._waiting:
            self._waiting.remove(request)
            return
        else:
            raise ValueError(f"request {request.request_id}: is not scheduled here, or no longer")
        if self.cache is not None:
            # The last token known has been through no forward: its keys and values are not there.
            written = (*request.prompt[: request.computed_tokens], *request.output[:-1])
            self.cache.insert(written, request.pages)
        self.pool.release(request.pages)
        request.pages = []
        heapq.heappush(self._free_rows, request.row)
        request.row = 0

    def _admits(self, request: Request) -> bool:
        """Give a request row and pages, or leave it as it is if there are not enough."""
        if not self._free_rows:
            return False
        shared: list[int] = []
        missing = self.pool.pages_for(self._tokens_of(request))
        if self.cache is not None:
            # Matched, and so held, before anything is evicted: it could be just those.
            shared = self.cache.match(request.prompt)
            missing -= len(shared)
            self.cache.evict(missing - self.pool.num_free)
        if missing > self.pool.num_free:
            self.pool.release(shared)
            return False
        request.pages = shared + self.pool.allocate(missing)
        request.row = heapq.heappop(self._free_rows)
        request.cached_tokens = request.computed_tokens = len(shared) * self.pool.page_size
        return True

    def _next_chunk(self, request: Request, budget: int) -> Chunk:
        start = request.computed_tokens
        chunk = Chunk(request, start, min(start + budget, len(request.prompt)))
        request.computed_tokens = chunk.end
        if chunk.is_last:
            self._in_flight = None
            self._running.append(request)
        else:
            self._in_flight = request
        return chunk

    def _tokens_of(self, request: Request) -> int:
        return len(request.prompt) + request.max_new_tokens + self.reserve_tokens
