"""Pages: who holds them, in which order they are handed out, which prefixes are kept how long."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from instrumented_runtime.pages import OutOfPagesError, PagePool, PrefixCache

# The pool.


def test_pages_are_handed_out_from_the_lowest_and_never_the_padding_page():
    pool = PagePool(8, 16)
    assert pool.allocate(3) == [1, 2, 3]
    assert pool.allocate(2) == [4, 5]
    pool.release([4, 2])
    assert pool.num_free == 4
    assert pool.allocate(3) == [2, 4, 6]


def test_a_page_is_free_when_its_last_holder_releases_it():
    pool = PagePool(3, 16)
    pages = pool.allocate(2)
    pool.retain(pages)
    pool.release(pages)
    assert (pool.num_free, pool.num_holders(1)) == (0, 1)
    pool.release([1])
    assert (pool.num_free, pool.num_holders(1)) == (1, 0)


def test_more_pages_than_are_free_are_refused_and_none_is_handed_out():
    pool = PagePool(6, 16)
    pool.allocate(2)
    with pytest.raises(OutOfPagesError, match="4 pages are wanted and 3 of 5 are free"):
        pool.allocate(4)
    assert pool.allocate(3) == [3, 4, 5]


@pytest.mark.parametrize("page", [0, 2])
def test_a_free_page_and_the_padding_page_have_no_holder_to_add_or_take(page):
    pool = PagePool(3, 16)
    pool.release(pool.allocate(2))
    for change in (pool.retain, pool.release):
        with pytest.raises(ValueError, match=f"page {page}: nobody holds it"):
            change([page])


@pytest.mark.parametrize(
    ("num_pages", "page_size", "said"),
    [
        (1, 16, "num_pages: 1 is not allowed; give a number ≥ 2"),
        (2, 0, "page_size: 0 is not allowed; give a number ≥ 1"),
    ],
)
def test_a_pool_without_a_page_or_a_token_is_refused(num_pages, page_size, said):
    with pytest.raises(ValueError, match=said):
        PagePool(num_pages, page_size)


@pytest.mark.parametrize(("num_tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2), (4096, 256)])
def test_a_page_that_is_begun_counts(num_tokens, pages):
    assert PagePool(2, 16).pages_for(num_tokens) == pages


# The cache: pages of two tokens, written as letters.


def cached(*prefixes, num_pages=32):
    """A cache that alone holds these, the first used longest ago."""
    pool = PagePool(num_pages, 2)
    cache = PrefixCache(pool)
    for tokens in prefixes:
        pages = pool.allocate(len(tokens) // 2)
        cache.insert(tuple(tokens), pages)
        pool.release(pages)
    return pool, cache


@pytest.mark.parametrize(
    ("tokens", "pages"),
    [
        ("abcdefg", [1, 2, 3]),
        ("abcdefxyz", [1, 2, 3]),
        # The last token is left to be computed, so its page is no full one.
        ("abcdef", [1, 2]),
        ("abcde", [1, 2]),
        ("abcd", [1]),
        ("abcxef", [1]),
        # The same page behind another one is another prefix.
        ("cdef", []),
        ("xbcdef", []),
        ("ab", []),
        ("a", []),
        ("", []),
    ],
)
def test_the_longest_cached_prefix_of_full_pages_is_found(tokens, pages):
    pool, cache = cached("abcdef")
    found = cache.match(tuple(tokens))
    assert found == pages
    assert [pool.num_holders(page) for page in (1, 2, 3)] == [1 + (p in pages) for p in (1, 2, 3)]


def test_half_a_page_is_not_kept():
    pool, cache = cached("abcde")
    assert (cache.num_pages, pool.num_free) == (2, 29)


def test_a_prefix_that_is_cached_is_not_kept_twice():
    pool, cache = cached("abcd", "abcdef", "abxy")
    # Page 1, 2 · 3, 4, 5 · 3, 4 were handed out; those of prefixes that were there went back.
    assert cache.match(tuple("abcdefg")) == [1, 2, 5]
    assert cache.match(tuple("abxyz")) == [1, 4]
    assert (cache.num_pages, pool.num_free) == (4, 27)


@pytest.mark.parametrize(
    ("used", "count", "left"),
    [
        # Leaves: abcd is the oldest, abxy next, pq the youngest.
        ("", 1, ["ab", "abxy", "pq"]),
        ("", 2, ["ab", "pq"]),
        ("", 3, ["pq"]),
        ("", 9, []),
        ("abcdz", 1, ["ab", "abcd", "pq"]),
        ("abcdz", 2, ["ab", "abcd"]),
        ("", 0, ["ab", "abcd", "abxy", "pq"]),
        ("", -1, ["ab", "abcd", "abxy", "pq"]),
    ],
)
def test_the_least_recently_used_leaf_is_dropped_first(used, count, left):
    pool, cache = cached("abcd", "abxy", "pq")
    pool.release(cache.match(tuple(used)))
    assert cache.evict(count) == 4 - len(left)
    prefixes = ["ab", "abcd", "abxy", "pq"]
    held = [len(cache.match((*prefix, "."))) == len(prefix) // 2 for prefix in prefixes]
    assert [prefix for prefix, is_held in zip(prefixes, held, strict=True) if is_held] == left


def test_a_page_that_a_request_uses_is_not_dropped_nor_what_is_before_it():
    pool, cache = cached("abcdef", "pq")
    used = cache.match(tuple("abcde"))
    assert cache.flush() == 2
    assert (cache.num_pages, cache.match(tuple("abcdefg"))) == (2, [1, 2])
    pool.release([*used, *used])
    assert (cache.flush(), cache.num_pages, pool.num_free) == (2, 0, 31)


def test_a_page_stays_while_one_that_continues_it_is_used():
    pool, cache = cached("abcd")
    # Computed beside the cached prefix and not of it: only its third page is kept.
    used = pool.allocate(3)
    cache.insert(tuple("abcdef"), used)
    assert (cache.flush(), cache.num_pages) == (0, 3)
    pool.release(used)
    assert (cache.flush(), cache.num_pages, pool.num_free) == (3, 0, 31)


def test_prefixes_whose_hashes_agree_are_not_confused():
    # In CPython -1 and -2 have one hash, and so have tuples that differ in them only.
    assert hash((-1, 3)) == hash((-2, 3))
    pool = PagePool(8, 2)
    cache = PrefixCache(pool)
    cache.insert((-1, 3), pool.allocate(1))
    assert cache.match((-2, 3, 4)) == []


class PagesAgainstBruteForce(RuleBasedStateMachine):
    """Requests that match, compute, insert and end, beside a model of dictionaries and counting."""

    requests = Bundle("requests")

    def __init__(self):
        super().__init__()
        self.pool = PagePool(12, 2)
        self.cache = PrefixCache(self.pool)
        self.held = []
        # Cached prefixes (all tokens up to the end of a page): the page, and when it was used.
        self.pages, self.used_at = {}, {}
        self.now = 0

    def prefixes(self, tokens):
        return [tokens[:end] for end in range(2, len(tokens) + 1, 2)]

    def use(self, prefixes):
        self.now += 1
        self.used_at.update(dict.fromkeys(prefixes, self.now))

    def num_holders(self, page):
        holders = [page for pages in [*self.held, list(self.pages.values())] for page in pages]
        return holders.count(page)

    @rule(target=requests, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple))
    def begin(self, tokens):
        found = [prefix for prefix in self.prefixes(tokens[:-1]) if prefix in self.pages]
        pages = self.cache.match(tokens)
        self.use(found)
        assert pages == [self.pages[prefix] for prefix in found]
        self.held.append(pages)
        wanted = -(-len(tokens) // 2) - len(pages)
        free = [page for page in range(1, 12) if not self.num_holders(page)]
        if wanted > len(free):
            with pytest.raises(OutOfPagesError):
                self.pool.allocate(wanted)
        else:
            new = self.pool.allocate(wanted)
            assert new == free[:wanted]
            pages.extend(new)
        return tokens, pages

    @rule(request=requests)
    def keep(self, request):
        tokens, pages = request
        self.cache.insert(tokens, pages)
        kept = self.prefixes(tokens)[: len(pages)]
        for prefix, page in zip(kept, pages, strict=False):
            self.pages.setdefault(prefix, page)
        self.use(kept)

    @rule(request=consumes(requests))
    def end(self, request):
        _, pages = request
        self.pool.release(pages)
        self.held = [others for others in self.held if others is not pages]

    @rule(count=st.integers(0, 12))
    def evict(self, count):
        dropped = 0
        while dropped < count:
            leaves = [
                prefix
                for prefix, page in self.pages.items()
                if self.num_holders(page) == 1
                and not any(other[: len(prefix)] == prefix != other for other in self.pages)
            ]
            if not leaves:
                break
            oldest = min(leaves, key=lambda prefix: (self.used_at[prefix], -len(prefix)))
            del self.pages[oldest]
            dropped += 1
        assert self.cache.evict(count) == dropped

    @invariant()
    def each_page_has_as_many_holders_as_hold_it(self):
        counted = [self.num_holders(page) for page in range(12)]
        assert [self.pool.num_holders(page) for page in range(12)] == counted
        assert self.pool.num_free == counted[1:].count(0)
        assert self.cache.num_pages == len(self.pages)


TestPagesAgainstBruteForce = PagesAgainstBruteForce.TestCase
TestPagesAgainstBruteForce.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None
)
