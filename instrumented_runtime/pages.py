"""Pages of keys and values by number: who holds them, and which prefixes of tokens they keep."""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# Padded rows of a batch write here; nobody owns what is in it.
PADDING_PAGE = 0


class OutOfPagesError(Exception):
    """More pages were wanted than are free."""


class PagePool:
    """Counts the holders of every page; a page without one is free."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        """Start with all pages free but the padding page.

        Raises:
            ValueError: There is no page to hand out, or a page has no token.
        """
        if num_pages < 2:
            raise ValueError(
                f"num_pages: {num_pages} is not allowed; give a number ≥ 2, page 0 being padding"
            )
        if page_size < 1:
            raise ValueError(f"page_size: {page_size} is not allowed; give a number ≥ 1")
        self.num_pages = num_pages
        self.page_size = page_size
        self._holders = [0] * num_pages
        self._free = list(range(PADDING_PAGE + 1, num_pages))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def num_holders(self, page: int) -> int:
        return self._holders[page]

    def pages_for(self, num_tokens: int) -> int:
        """Return how many pages hold so many tokens."""
        return -(-num_tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
        """Hand out the free pages of the lowest numbers, ascending, with the caller as holder.

        Raises:
            OutOfPagesError: There are not so many; none is handed out then.
        """
        if count > self.num_free:
            raise OutOfPagesError(
                f"{count} pages are wanted and {self.num_free} of {self.num_pages - 1} are free"
            )
        pages = [heapq.heappop(self._free) for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def retain(self, pages: Iterable[int]) -> None:
        """Add a holder to each page.

        Raises:
            ValueError: A page is free: what it held may be gone already.
        """
        for page in pages:
            self._require_held(page)
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Take a holder from each page; a page without any is free from then on.

        Raises:
            ValueError: A page is free already.
        """
        for page in pages:
            self._require_held(page)
            self._holders[page] -= 1
            if not self._holders[page]:
                heapq.heappush(self._free, page)

    def _require_held(self, page: int) -> None:
        if not self._holders[page]:
            raise ValueError(f"page {page}: nobody holds it")


@dataclass(slots=True, eq=False)
class _Node:
    """One cached page: its tokens, given those of all pages before it."""

    tokens: tuple[int, ...]
    page: int
    parent: "_Node | None"
    children: "dict[tuple[int, ...], _Node]" = field(default_factory=dict)


class PrefixCache:
    """A trie of full pages, keyed by their tokens themselves: no two prefixes can be confused.

    The cache is one holder of every page in it. All costs are linear in the pages of the prefix;
    that of an eviction also in the pages which are older than the last one dropped and held.
    """

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self._root = _Node((), PADDING_PAGE, None)
        # Least recently used first. Who uses a page uses all before it, and a path is entered from
        # its end, so children always stand before their parents.
        self._by_use: OrderedDict[_Node, None] = OrderedDict()

    @property
    def num_pages(self) -> int:
        return len(self._by_use)

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Return the pages of the longest cached prefix, with the caller as a further holder.

        The last token is never among them: its logits are what a forward is for.
        """
        path: list[_Node] = []
        node = self._root
        for key in self._page_keys(tokens[:-1]):
            child = node.children.get(key)
            if child is None:
                break
            path.append(child)
            node = child
        self._use(path)
        pages = [node.page for node in path]
        self.pool.retain(pages)
        return pages

    def insert(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Keep the full pages of the tokens; one whose prefix is there already is not kept twice.

        Args:
            tokens: Those whose keys and values are in the pages, from the first on.
            pages: Held by the caller, who remains their holder; there may be more than needed.
        """
        path: list[_Node] = []
        node = self._root
        for key, page in zip(self._page_keys(tokens), pages, strict=False):
            child = node.children.get(key)
            if child is None:
                self.pool.retain([page])
                child = node.children[key] = _Node(key, page, node)
                self._by_use[child] = None
            path.append(child)
            node = child
        self._use(path)

    def evict(self, count: int) -> int:
        """Drop up to `count` pages that the cache alone holds, and return how many it were.

        The least recently used leaf goes first. A page stays while one that continues it stays.
        """
        dropped: list[_Node] = []
        for node in self._by_use:
            if len(dropped) >= count:
                break
            if not node.children and self.pool.num_holders(node.page) == 1:
                assert node.parent is not None
                del node.parent.children[node.tokens]
                dropped.append(node)
        for node in dropped:
            del self._by_use[node]
        self.pool.release(node.page for node in dropped)
        return len(dropped)

    def flush(self) -> int:
        """Drop all that nobody else holds, and return how many pages it were."""
        return self.evict(self.num_pages)

    def _page_keys(self, tokens: Sequence[int]) -> Iterable[tuple[int, ...]]:
        size = self.pool.page_size
        for start in range(0, len(tokens) - size + 1, size):
            yield tuple(tokens[start : start + size])

    def _use(self, path: list[_Node]) -> None:
        for node in reversed(path):
            self._by_use.move_to_end(node)
