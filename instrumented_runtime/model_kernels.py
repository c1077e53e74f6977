"""What the decoder's kernels do to tensors, on any device; each works on all rows it is given.

Shapes: `n` tokens, `b` sequences of a padded batch, `k` drafted tokens. Everything is a torch
operation that a graph can capture: no shape depends on data and nothing comes to the host. Row 0 of
the request table and page 0 are padding, which padded batches read and write harmlessly.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from instrumented_runtime.devices import store_rows
from instrumented_runtime.model import MODULUS, VOCABULARY, WINDOW, is_missed

if TYPE_CHECKING:
    from torch import Tensor

# Columns of the request table before the pages.
SEED, THRESHOLD, PAGES = 0, 1, 2

Function = Callable[..., None]


def embed(tokens: "Tensor", embedding: "Tensor", hidden: "Tensor") -> None:
    """Set `hidden [n, WIDTH]` to the embedding of `n` tokens."""
    hidden.copy_(embedding[tokens.flatten()])


@cache
def write_values(layer: int, page_size: int) -> Function:
    """Return the kernel that writes a layer's values of `n` tokens where their pages are."""

    def function(
        rows: "Tensor",
        positions: "Tensor",
        table: "Tensor",
        hidden: "Tensor",
        values: "Tensor",
        cache: "Tensor",
    ) -> None:
        slots = cache_slots(table, rows.flatten(), positions.flatten(), page_size)
        store_rows(cache[:, layer], slots, (hidden @ values[layer]).remainder(MODULUS))

    return function


@cache
def attend(layer: int, page_size: int) -> Function:
    """Return the kernel that adds to `hidden` the window of values before each token."""

    def function(
        rows: "Tensor",
        positions: "Tensor",
        table: "Tensor",
        cache: "Tensor",
        attention: "Tensor",
        back: "Tensor",
        hidden: "Tensor",
    ) -> None:
        rows, positions = rows.flatten(), positions.flatten()
        seen = positions[:, None] - back
        slots = cache_slots(table, rows[:, None].expand(-1, WINDOW), seen.clamp(min=0), page_size)
        share = attention[layer] * (seen >= 0)
        context = (share[:, :, None] * cache[slots, layer]).sum(1)
        hidden.copy_((3 * hidden + context).remainder(MODULUS))

    return function


def project(hidden: "Tensor", head: "Tensor", tie: "Tensor", targets: "Tensor") -> None:
    """Set `targets [n]` to the most likely next token of each."""
    logits = (hidden - MODULUS // 2) @ head + tie
    targets.copy_(logits.argmax(1).view_as(targets))


def load_batch(is_checked: bool) -> Function:
    """Return the kernel that takes a decode batch into a graph's own inputs.

    It gathers the last token of each row from the future map, see `take_rows`.
    """

    def function(
        new_rows: "Tensor",
        new_lengths: "Tensor",
        output_tokens: "Tensor",
        rows: "Tensor",
        lengths: "Tensor",
        tokens: "Tensor",
    ) -> None:
        # Either may be longer: the padded size can be above the largest batch.
        rows[: len(new_rows)] = new_rows[: len(rows)]
        lengths[: len(new_lengths)] = new_lengths[: len(rows)]
        tokens[:, 0] = take_rows(output_tokens, rows, is_checked=is_checked)

    return function


def take_rows(source: "Tensor", rows: "Tensor", *, is_checked: bool) -> "Tensor":
    """Return `source[rows]`, 0 for padding.

    Checked, each row must have been written since it was last taken: taking one leaves −1 there,
    and to find −1 fails (on a GPU as an assertion of the device).
    """
    is_padding = rows == 0
    taken = source[rows].masked_fill(is_padding, 0)
    if is_checked:
        import torch

        message = "FutureMap: a row was read again before anything was published to it"
        torch._assert_async((taken >= 0).all(), message)
        source.index_fill_(0, rows, -1)
    return taken


def draft_inputs(place: int) -> Function:
    """Return the kernel that sets up the `place`-th step of the draft, from 0."""

    def function(
        rows: "Tensor", lengths: "Tensor", tokens: "Tensor", inputs: "Tensor", positions: "Tensor"
    ) -> None:
        inputs.copy_(tokens[:, place])
        # Padding stays at the beginning of its one page.
        positions.copy_((lengths + place) * (rows != 0))

    return function


def draft_token(place: int) -> Function:
    """Return the kernel that sets the `place`-th drafted token, wrong where the request misses."""

    def function(
        rows: "Tensor", lengths: "Tensor", table: "Tensor", targets: "Tensor", tokens: "Tensor"
    ) -> None:
        own = table[rows]
        missed = is_missed(own[:, SEED], own[:, THRESHOLD], lengths + place + 1)
        tokens[:, place + 1] = (targets + missed.long()) % VOCABULARY

    return function


def verify_inputs(
    rows: "Tensor", lengths: "Tensor", steps: "Tensor", all_rows: "Tensor", positions: "Tensor"
) -> None:
    """Spread `rows [b]` and positions from `lengths [b]` on over `[b, k + 1]`."""
    all_rows.copy_(rows[:, None].expand_as(all_rows))
    spread = lengths[:, None] + steps[: all_rows.shape[1]]
    positions.copy_(spread * (rows != 0)[:, None])


def accept(
    rows: "Tensor",
    lengths: "Tensor",
    tokens: "Tensor",
    targets: "Tensor",
    result: "Tensor",
    new_lengths: "Tensor",
    last_tokens: "Tensor",
) -> None:
    """Keep drafted tokens up to the first that the target would not have said.

    `result [b, k + 2]` is the number of tokens the verify yields (the bonus token included), then
    the target's tokens; `new_lengths` and `last_tokens [b]` are what the next step begins with.
    """
    is_right = (tokens[:, 1:] == targets[:, :-1]).long()
    count = is_right.cumprod(1).sum(1) + 1
    result[:, 0] = count
    result[:, 1:] = targets
    is_real = (rows != 0).long()
    new_lengths.copy_((lengths + count) * is_real)
    last_tokens.copy_(targets.gather(1, count[:, None] - 1)[:, 0] * is_real)


def scatter(rows: "Tensor", values: "Tensor", target: "Tensor") -> None:
    """Write `target[rows] = values`."""
    store_rows(target, rows, values[: len(rows)])


def gather_lengths(is_checked: bool) -> Function:
    """Return the kernel that takes the lengths of rows from the future map, see `take_rows`."""

    def function(rows: "Tensor", source: "Tensor", lengths: "Tensor", _poisoned: "Tensor") -> None:
        lengths.copy_(take_rows(source, rows, is_checked=is_checked))

    return function


def resolve_tails(first_token: int, first_sequence: int) -> Function:
    """Return the kernel that fills in requests which decode one token beside a prefill.

    Tokens and positions from `first_token` on, and new lengths from `first_sequence` on, become
    those of `rows [n]`.
    """

    def function(
        rows: "Tensor",
        new_seq_lens: "Tensor",
        output_tokens: "Tensor",
        tokens: "Tensor",
        positions: "Tensor",
        ends: "Tensor",
    ) -> None:
        is_real = rows != 0
        tokens[first_token:] = output_tokens[rows] * is_real
        positions[first_token:] = new_seq_lens[rows] * is_real
        ends[first_sequence:] = (new_seq_lens[rows] + 1) * is_real

    return function


def pick_last(targets: "Tensor", last_index: "Tensor", last_tokens: "Tensor") -> None:
    """Take what follows the last token of each sequence."""
    last_tokens.copy_(targets[last_index])


def clear(target: "Tensor") -> None:
    """Set everything to 0."""
    target.zero_()


def invalidate(target: "Tensor") -> None:
    """Set every row to −1."""
    target.fill_(-1)


def cache_slots(table: "Tensor", rows: "Tensor", positions: "Tensor", page_size: int) -> "Tensor":
    """Return where the cache has the values of positions of rows, all of one shape."""
    pages = table[rows, PAGES + positions // page_size]
    return pages * page_size + positions % page_size
