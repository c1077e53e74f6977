"""What each step computes, and to whom rows and pages go.

Batches are compared as text: `+1:0-4 2:4-6 | 3 4` computes the tokens [0, 4) of request 1, which is
admitted with it, and [4, 6) of request 2, while 3 and 4 decode.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instrumented_runtime.pages import PagePool, PrefixCache
from instrumented_runtime.request import Request
from instrumented_runtime.scheduling.min_free_slots_delayer import MinFreeSlotsDelayer
from instrumented_runtime.scheduling.scheduler import Scheduler

PAGE_SIZE = 2


def scheduler_of(
    *,
    max_running=8,
    chunk_tokens=4,
    num_pages=64,
    page_size=PAGE_SIZE,
    cached=False,
    delayer=None,
    mix_decode=False,
    reserve_tokens=0,
):
    pool = PagePool(num_pages, page_size)
    return Scheduler(
        max_running=max_running,
        chunk_tokens=chunk_tokens,
        pool=pool,
        cache=PrefixCache(pool) if cached else None,
        delayer=delayer or MinFreeSlotsDelayer(0),
        mix_decode=mix_decode,
        reserve_tokens=reserve_tokens,
    )


def add(scheduler, *lengths, max_new_tokens=2):
    """Queue requests of these lengths with prompts that have nothing in common; numbers from 1."""
    requests = [
        Request(number, tuple(range(1000 * number, 1000 * number + length)), max_new_tokens)
        for number, length in enumerate(lengths, 1)
    ]
    for request in requests:
        scheduler.add(request)
    return requests


def text(batch):
    if batch is None:
        return "-"
    chunks = " ".join(
        f"{'+' * (chunk.request in batch.admitted)}{chunk.request.request_id}"
        f":{chunk.start}-{chunk.end}"
        for chunk in batch.chunks
    )
    return f"{chunks} | {' '.join(str(request.request_id) for request in batch.decode)}".strip()


def steps(scheduler, count):
    return [text(scheduler.next_batch()) for _ in range(count)]


def numbers(requests):
    return [request.request_id for request in requests]


# Chunks.


def test_prompts_of_a_whole_chunk_are_prefilled_one_a_step_and_then_all_decode():
    scheduler = scheduler_of(chunk_tokens=4096, page_size=64, num_pages=512)
    add(scheduler, 4096, 4096, 4096)
    assert steps(scheduler, 5) == [
        "+1:0-4096 |",
        "+2:0-4096 |",
        "+3:0-4096 |",
        "| 1 2 3",
        "| 1 2 3",
    ]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        # A prompt longer than a step is the one in flight; what is left of a step goes to the next.
        ([10], ["+1:0-4 |", "1:4-8 |", "1:8-10 |", "| 1"]),
        ([6, 6], ["+1:0-4 |", "1:4-6 +2:0-2 |", "2:2-6 |", "| 1 2"]),
        ([1, 2, 1, 1], ["+1:0-1 +2:0-2 +3:0-1 |", "+4:0-1 |", "| 1 2 3 4"]),
        ([3, 3, 3], ["+1:0-3 +2:0-1 |", "2:1-3 +3:0-2 |", "3:2-3 |", "| 1 2 3"]),
        ([], ["-"]),
    ],
)
def test_a_step_is_filled_with_prompts_first_come_first_served(lengths, expected):
    scheduler = scheduler_of()
    add(scheduler, *lengths)
    assert steps(scheduler, len(expected)) == expected


def test_a_chunk_says_whether_its_prompt_ends_with_it():
    scheduler = scheduler_of()
    add(scheduler, 3, 3)
    first = scheduler.next_batch()
    assert [chunk.is_last for chunk in first.chunks] == [True, False]
    assert [chunk.is_last for chunk in scheduler.next_batch().chunks] == [True]


@pytest.mark.parametrize(
    ("mix_decode", "expected"),
    [
        (True, ["mixed +2:0-4 | 1", "mixed 2:4-6 +3:0-1 | 1", "decode | 1 2 3"]),
        (False, ["prefill +2:0-4 |", "prefill 2:4-6 +3:0-1 |", "decode | 1 2 3"]),
    ],
)
def test_running_requests_decode_beside_prompts_only_if_asked_to(mix_decode, expected):
    scheduler = scheduler_of(mix_decode=mix_decode)
    scheduler.add(Request(1, (1,), 9))
    first = scheduler.next_batch()
    # A request does not decode in the step that ends its own prompt.
    assert (first.kind, text(first)) == ("prefill", "+1:0-1 |")
    for number, length in ((2, 6), (3, 1)):
        scheduler.add(Request(number, (0,) * length, 9))
    batches = [scheduler.next_batch() for _ in expected]
    assert [f"{batch.kind} {text(batch)}" for batch in batches] == expected


# Rows.


def test_the_lowest_free_row_is_given_and_never_the_padding_row():
    scheduler = scheduler_of(max_running=3, chunk_tokens=16)
    requests = add(scheduler, 2, 2, 2, 2, 2)
    assert steps(scheduler, 2) == ["+1:0-2 +2:0-2 +3:0-2 |", "| 1 2 3"]
    assert [request.row for request in requests] == [1, 2, 3, 0, 0]
    assert scheduler.num_allocatable == 0
    scheduler.finish(requests[2])
    scheduler.finish(requests[0])
    assert scheduler.num_allocatable == 2
    assert steps(scheduler, 2) == ["+4:0-2 +5:0-2 |", "| 2 4 5"]
    assert [request.row for request in requests] == [0, 2, 0, 1, 3]


# The delayer.


@pytest.mark.parametrize(
    ("delayer", "running", "waiting"),
    [
        (MinFreeSlotsDelayer(4, rule="free-slots"), 253, 3),
        (MinFreeSlotsDelayer(2, rule="free-slots"), 255, 1),
        (MinFreeSlotsDelayer(4), 256, 0),
        (MinFreeSlotsDelayer(2), 256, 0),
        (MinFreeSlotsDelayer(0, rule="free-slots"), 256, 0),
    ],
)
def test_a_burst_that_fills_the_server_settles_with_its_last_queued_by_the_old_rule_only(
    delayer, running, waiting
):
    # 4096 prompt tokens and 3072 new ones.
    num_pages = 1 + 256 * (4096 + 3072) // 64
    scheduler = scheduler_of(
        max_running=256, chunk_tokens=4096, page_size=64, num_pages=num_pages, delayer=delayer
    )
    requests = [Request(number, (number,) * 4096, 3072) for number in range(256)]
    for request in requests:
        scheduler.add(request)
    kinds = [scheduler.next_batch().kind for _ in range(300)]
    assert kinds == ["prefill"] * running + ["decode"] * (300 - running)
    assert (len(scheduler.running), len(scheduler.waiting)) == (running, waiting)
    assert scheduler.waiting == tuple(requests[running:])
    # Enough ending is what the old rule waits for.
    for request in requests[:4]:
        scheduler.finish(request)
    assert scheduler.next_batch().kind == ("prefill" if waiting else "decode")


def test_nobody_is_delayed_while_nothing_runs():
    scheduler = scheduler_of(max_running=2, delayer=MinFreeSlotsDelayer(4, rule="free-slots"))
    add(scheduler, 4, 4)
    assert steps(scheduler, 3) == ["+1:0-4 |", "| 1", "| 1"]


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        # With requests 1 and 2 there, one slot of three is free: too few for request 3, if asked.
        (4, ["+2:0-4 |", "| 1 2", "| 1 2"]),
        (7, ["+2:0-4 |", "2:4-7 +3:0-1 |", "| 1 2 3"]),
    ],
)
def test_while_a_prompt_is_in_flight_the_delayer_is_not_asked(length, expected):
    scheduler = scheduler_of(max_running=3, delayer=MinFreeSlotsDelayer(2, rule="free-slots"))
    scheduler.add(Request(1, (0,), 9))
    assert steps(scheduler, 1) == ["+1:0-1 |"]
    scheduler.add(Request(2, (0,) * length, 9))
    scheduler.add(Request(3, (0,), 9))
    assert steps(scheduler, 3) == expected


# Pages.


def test_a_request_gets_its_pages_for_all_that_it_may_become():
    scheduler = scheduler_of(reserve_tokens=3)
    (request,) = add(scheduler, 6, max_new_tokens=4)
    scheduler.next_batch()
    assert request.pages == [1, 2, 3, 4, 5, 6, 7]


def test_a_request_waits_for_pages_and_those_behind_it_wait_too():
    # Seven pages of two tokens: the first takes four, the second five, the third two.
    scheduler = scheduler_of(num_pages=8, chunk_tokens=32)
    first, second, third = add(scheduler, 6, 8, 2)
    assert steps(scheduler, 2) == ["+1:0-6 |", "| 1"]
    assert (second.row, second.pages, second.computed_tokens) == (0, [], 0)
    scheduler.finish(first)
    assert steps(scheduler, 2) == ["+2:0-8 +3:0-2 |", "| 2 3"]
    assert (second.pages, third.pages) == ([1, 2, 3, 4, 5], [6, 7])


@pytest.mark.parametrize(("max_new_tokens", "is_refused"), [(5, False), (6, True)])
def test_a_request_that_can_never_fit_the_pool_is_refused(max_new_tokens, is_refused):
    scheduler = scheduler_of(num_pages=8, reserve_tokens=1)
    request = Request(3, (0,) * 8, max_new_tokens)
    if not is_refused:
        scheduler.add(request)
        assert text(scheduler.next_batch()) == "+3:0-4 |"
        return
    with pytest.raises(
        ValueError,
        match=r"request 3: needs room for 15 tokens \(prompt 8, new 6, reserve 1\); the pool holds 14",
    ):
        scheduler.add(request)
    assert scheduler.waiting == ()


# The prefix cache.


def letters(tokens):
    return tuple(map(ord, tokens))


def serve(scheduler, prompt, output=()):
    """Compute one request to its end, and return it with the first batch."""
    request = Request(0, letters(prompt), max(len(output), 1))
    scheduler.add(request)
    first = scheduler.next_batch()
    while request not in scheduler.running:
        scheduler.next_batch()
    request.take(letters(output), 5)
    scheduler.finish(request)
    return request, text(first)


def test_a_cached_prefix_is_not_computed_again_until_the_cache_is_flushed():
    scheduler = scheduler_of(cached=True, chunk_tokens=64)
    assert serve(scheduler, "abcdefgh")[1] == "+0:0-8 |"
    request, first = serve(scheduler, "abcdefgh")
    # The last page would be cached too, but a last token is always left to compute.
    assert (first, request.cached_tokens, request.computed_tokens) == ("+0:6-8 |", 6, 8)
    assert serve(scheduler, "abcdxy")[1] == "+0:4-6 |"
    scheduler.cache.flush()
    assert serve(scheduler, "abcdxy")[1] == "+0:0-6 |"


def test_requests_share_the_pages_of_their_prefix():
    scheduler = scheduler_of(cached=True, chunk_tokens=64)
    serve(scheduler, "abcdefgh")
    for number, prompt in enumerate(["abcdX", "abcdY"], 1):
        scheduler.add(Request(number, letters(prompt), 1))
    assert text(scheduler.next_batch()) == "+1:4-5 +2:4-5 |"
    assert [request.pages for request in scheduler.running] == [[1, 2, 5], [1, 2, 6]]


def test_new_tokens_are_cached_too_but_for_the_last_which_no_forward_has_seen():
    scheduler = scheduler_of(cached=True, chunk_tokens=64)
    serve(scheduler, "abc", output="defgh")
    # Computed were abcdefg, so three pages; h came out of g.
    assert serve(scheduler, "abcdefghi")[1] == "+0:6-9 |"


def test_the_cache_makes_room_and_spares_the_prefix_that_is_wanted():
    scheduler = scheduler_of(cached=True, chunk_tokens=64, num_pages=8)
    for prompt in ("abcd", "efgh", "ijkl"):
        serve(scheduler, prompt)
    assert (scheduler.cache.num_pages, scheduler.pool.num_free) == (6, 1)
    # The oldest prefix is the one that is wanted, so the two pages missing are those of the next.
    assert serve(scheduler, "abcdABCDE")[1] == "+0:4-9 |"
    assert serve(scheduler, "ijklm")[1] == "+0:4-5 |"
    assert serve(scheduler, "efghm")[1] == "+0:0-5 |"


def test_who_waits_for_pages_does_not_hold_its_prefix_meanwhile():
    scheduler = scheduler_of(cached=True, chunk_tokens=64, num_pages=8)
    serve(scheduler, "abcd")
    for number, prompt in enumerate(["ABCDEFG", "abcdefgh"], 1):
        scheduler.add(Request(number, letters(prompt), 1))
    assert steps(scheduler, 3) == ["+1:0-7 |", "| 1", "| 1"]
    assert [scheduler.pool.num_holders(page) for page in (1, 2)] == [1, 1]
    scheduler.finish(scheduler.running[0])
    assert text(scheduler.next_batch()) == "+2:4-8 |"


# Requests that end before their time.


def test_an_aborted_request_is_forgotten_wherever_it_stands():
    scheduler = scheduler_of(chunk_tokens=4)
    requests = add(scheduler, 2, 6, 4)
    assert text(scheduler.next_batch()) == "+1:0-2 +2:0-2 |"
    running, in_flight, waiting = requests
    scheduler.finish(in_flight)
    scheduler.finish(waiting)
    assert text(scheduler.next_batch()) == "| 1"
    scheduler.finish(running)
    assert text(scheduler.next_batch()) == "-"
    assert (scheduler.running, scheduler.waiting) == ((), ())
    assert (scheduler.num_allocatable, scheduler.pool.num_free) == (8, 63)
    for request in requests:
        assert (request.row, request.pages) == (0, [])
        with pytest.raises(ValueError, match=f"request {request.request_id}: is not scheduled"):
            scheduler.finish(request)


def test_of_a_prompt_aborted_in_flight_only_what_was_scheduled_is_cached():
    scheduler = scheduler_of(cached=True, chunk_tokens=5)
    request = Request(1, letters("abcdefghij"), 1)
    scheduler.add(request)
    scheduler.next_batch()
    scheduler.finish(request)
    assert serve(scheduler, "abcdefghij")[1] == "+0:4-9 |"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_running": 0}, "max_running: 0 is not allowed; give a number ≥ 1"),
        ({"chunk_tokens": 0}, "chunk_tokens: 0 is not allowed; give a number ≥ 1"),
        ({"reserve_tokens": -1}, "reserve_tokens: -1 is not allowed; give a number ≥ 0"),
    ],
)
def test_limits_with_which_nothing_runs_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        scheduler_of(**options)


def test_a_cache_of_another_pool_is_refused():
    with pytest.raises(ValueError, match="cache: is of another pool"):
        Scheduler(
            max_running=1,
            chunk_tokens=1,
            pool=PagePool(4, 2),
            cache=PrefixCache(PagePool(4, 2)),
            delayer=MinFreeSlotsDelayer(0),
            mix_decode=False,
            reserve_tokens=0,
        )


# All of it at random, with the pages' content.


class OverlappedEngine:
    """Computes batches at once, as the device would see them in order, and learns one step later.

    A token's keys and values are written as all tokens up to it, so a page that is shared, reused or
    kept wrongly is seen by the next who reads it.
    """

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.memory = {}
        # Of each request all tokens that the device knows, the host being a step behind.
        self.tokens = {}
        self.unknown = []

    def step(self):
        batch = self.scheduler.next_batch()
        learnt, self.unknown = self.unknown, []
        if batch is not None:
            self.check(batch)
            for chunk in batch.chunks:
                self.compute(chunk.request, chunk.start, chunk.end)
            for request in batch.decode:
                known = len(self.tokens[request])
                self.compute(request, known - 1, known)
        for request, token in learnt:
            if not request.is_finished:
                request.take([token], 0)
                if request.is_finished:
                    self.scheduler.finish(request)
        return batch

    def compute(self, request, start, end):
        tokens = self.tokens.setdefault(request, list(request.prompt))
        for position in range(end):
            page = request.pages[position // PAGE_SIZE]
            upto = tuple(tokens[: position + 1])
            if position >= start:
                self.memory[page, position % PAGE_SIZE] = upto
            assert self.memory.get((page, position % PAGE_SIZE)) == upto
        if end == len(tokens):
            tokens.append(sum(tokens) % 3)
            self.unknown.append((request, tokens[-1]))

    def check(self, batch):
        """What is given to whom, right after it is scheduled."""
        scheduler = self.scheduler
        assert sum(chunk.end - chunk.start for chunk in batch.chunks) <= scheduler.chunk_tokens
        assert all(chunk.is_last for chunk in batch.chunks[:-1])
        chunked = [chunk.request for chunk in batch.chunks]
        assert len({*chunked, *batch.decode}) == len(chunked) + len(batch.decode)
        live = list(dict.fromkeys([*scheduler.running, *chunked]))
        rows = [request.row for request in live]
        assert len(set(rows)) == len(rows) and all(1 <= r <= scheduler.max_running for r in rows)
        assert scheduler.num_allocatable == scheduler.max_running - len(live)
        for request in live:
            assert 0 not in request.pages
            own = request.pages[request.cached_tokens // PAGE_SIZE :]
            # The cache gets pages when a request ends, so while it lives its own are its own.
            assert [scheduler.pool.num_holders(page) for page in own] == [1] * len(own)


PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple)
ACTIONS = st.one_of(
    st.tuples(st.just("add"), PROMPTS, st.integers(1, 4)),
    st.tuples(st.just("abort"), st.integers(0, 9)),
    st.just(("flush",)),
    st.just(("step",)),
    st.just(("step",)),
)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(ACTIONS, max_size=40),
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 3),
)
def test_rows_and_pages_are_never_shared_but_for_prefixes_and_all_come_back(
    actions, cached, mix_decode, max_running, chunk_tokens, min_free_slots
):
    scheduler = scheduler_of(
        max_running=max_running,
        chunk_tokens=chunk_tokens,
        num_pages=9,
        cached=cached,
        delayer=MinFreeSlotsDelayer(min_free_slots, rule="free-slots"),
        mix_decode=mix_decode,
    )
    engine = OverlappedEngine(scheduler)
    added, admitted = [], []
    for action, *arguments in [*actions, *[("step",)] * 700]:
        if action == "add":
            added.append(Request(len(added), *arguments, stop_tokens=frozenset({2})))
            scheduler.add(added[-1])
        elif action == "abort":
            live = [request for request in added if request.row or request in scheduler.waiting]
            if live:
                aborted = live[arguments[0] % len(live)]
                scheduler.finish(aborted)
                aborted.finish_reason = "stop"
        elif action == "flush" and cached:
            scheduler.cache.flush()
        elif action == "step" and (batch := engine.step()):
            admitted += numbers(batch.admitted)
    assert admitted == sorted(admitted)
    assert all(request.is_finished for request in added)
    assert scheduler.num_allocatable == max_running
    if cached:
        scheduler.cache.flush()
    assert scheduler.pool.num_free == 8
