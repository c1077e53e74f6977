"""Compressors give the entries of the formulas, however a request is cut into steps."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.compressor_steps import (
    FOUR,
    LONG,
    PAGE_ENTRIES,
    SHAPES,
    UNTOUCHED,
    Piece,
    Run,
    assert_close,
    hidden_states,
    reference,
)

from instrumented_runtime.compressor.compressor import CompressorShape
from instrumented_runtime.devices import Kernel, MemoryFault
from instrumented_runtime.devices.virtual import Config, VirtualDevice


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Its operations are so small that threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(shape, **sizes):
    return Run(VirtualDevice(Config()), shape, **({"rows": 3, "max_tokens": 1024} | sizes))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_prefill_gives_the_entries_of_the_formulas(shape):
    tokens = 5 * shape.ratio + shape.ratio // 2
    hidden = hidden_states(tokens, shape)
    one = run(shape, max_positions=tokens)
    one.step([Piece(2, 0, tokens)], {2: hidden})
    assert_close(one.entries(2, tokens), reference(hidden, one.parameters, shape), 1e-5)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_in_bfloat16_only_the_projection_is_rounded(shape):
    tokens = 5 * shape.ratio
    hidden = hidden_states(tokens, shape)
    one = run(shape, max_positions=tokens, dtype="bfloat16")
    one.step([Piece(2, 0, tokens)], {2: hidden})

    def rounded(values):
        return torch.from_numpy(values).bfloat16().float().numpy()

    weight, bias, norm = one.parameters
    expected = reference(rounded(hidden), (rounded(weight), bias, norm), shape)
    # A score of 4 is off by up to 2^-7, a share by as much, and an entry by what its window spreads
    # times that; many errors partly cancel.
    assert_close(one.entries(2, tokens), expected, 2**-6)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_decoding_token_by_token_gives_what_a_prefill_gives(shape):
    tokens = 2 * shape.ratio
    hidden = hidden_states(tokens, shape)
    one = run(shape, max_positions=tokens, max_tokens=4)
    for position in range(tokens):
        one.step([Piece(0, 0, 1), Piece(1, position, 1), Piece(0, 0, 2)], {0: hidden, 1: hidden})
    assert_close(one.entries(1, tokens), reference(hidden, one.parameters, shape), 1e-5)


MOST_DRAFTED = 5


@st.composite
def histories(draw, shape):
    """Steps of up to three requests, of which some take tokens back, then the tokens of each."""
    longest = 3 * shape.ratio + 3 if shape.ratio > 4 else 40
    length = [0] * 4
    steps = []
    sizes = st.one_of(st.integers(1, 7), st.integers(1, longest))
    for _ in range(draw(st.integers(1, 8))):
        pieces = []
        for row in draw(st.permutations([1, 2, 3]))[: draw(st.integers(1, 3))]:
            is_verify = length[row] > 0 and draw(st.booleans())
            most = min(MOST_DRAFTED + 1 if is_verify else longest, longest - length[row])
            if most < 1:
                continue
            count = min(draw(sizes), most)
            pieces.append(Piece(row, length[row], count))
            length[row] += draw(st.integers(1, count)) if is_verify else count
        padding = draw(st.integers(0, 2))
        if padding:
            pieces.insert(draw(st.integers(0, len(pieces))), Piece(0, 0, padding))
        if pieces:
            steps.append(pieces)
    return steps, length


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_cut_into_steps_gives_what_the_whole_request_gives(shape, data):
    steps, length = data.draw(histories(shape))
    one = run(shape, rows=4, max_positions=400, max_tokens=1300, drafted=MOST_DRAFTED)
    final = {row: hidden_states(420, shape, seed=row) for row in range(4)}
    known = [0] * 4
    for number, pieces in enumerate(steps):
        # What a step takes back was another token.
        after = [
            next(
                (p.first for later in steps[number + 1 :] for p in later if p.row == row),
                length[row],
            )
            for row in range(4)
        ]
        hidden = {row: states.copy() for row, states in final.items()}
        for row in range(1, 4):
            hidden[row][after[row] :] = 50.0 + number
        one.step(pieces, hidden)
        known = after
    for row in range(1, 4):
        if known[row] >= shape.ratio:
            expected = reference(final[row][: known[row]], one.parameters, shape)
            assert_close(one.entries(row, known[row]), expected, 1e-5)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("before_the_end", [1, 2, 3, 4])
def test_all_drafted_tokens_can_be_taken_back_wherever_they_begin(shape, before_the_end):
    tokens = 3 * shape.ratio
    first = 2 * shape.ratio - before_the_end
    hidden = hidden_states(tokens, shape)
    wrong = hidden.copy()
    wrong[first:] = 50.0
    one = run(shape, max_positions=tokens + MOST_DRAFTED, drafted=MOST_DRAFTED)
    one.step([Piece(1, 0, first - 1)], {1: hidden})
    one.step([Piece(1, first - 1, 1 + MOST_DRAFTED)], {1: np.concatenate((wrong, wrong))})
    for begin, end in ((first, first + 1), (first + 1, tokens)):
        one.step([Piece(1, begin, end - begin)], {1: hidden})
    assert_close(one.entries(1, tokens), reference(hidden, one.parameters, shape), 1e-5)


def test_padding_writes_zeros_to_its_own_entry_and_nothing_else():
    one = run(FOUR, max_positions=16)
    hidden = hidden_states(16, FOUR)
    one.step([Piece(0, 0, 8), Piece(1, 0, 4)], {0: hidden, 1: hidden})
    cache = one.cache()
    written = np.flatnonzero((cache != UNTOUCHED).any(1))
    assert written.tolist() == sorted({0, int(one.pages[1, 0]) * PAGE_ENTRIES})
    assert not cache[0].any()


@pytest.mark.parametrize("shape", [FOUR, LONG])
def test_a_request_is_not_reached_by_what_memory_held_before(shape):
    tokens = 2 * shape.ratio
    hidden = hidden_states(tokens, shape)
    one = run(shape, max_positions=tokens)
    spoil = Kernel("spoil", 1, lambda kept: kept.fill_(float("nan")))
    one.marked.launch(spoil, one.stream, [], [one.compressor._kept])
    for first, count in ((0, shape.ratio - 1), (shape.ratio - 1, 1), (shape.ratio, shape.ratio)):
        one.step([Piece(0, 0, 3), Piece(1, first, count)], {0: hidden, 1: hidden})
    assert_close(one.entries(1, tokens), reference(hidden, one.parameters, shape), 1e-5)
    assert not one.cache()[0].any()


def test_a_row_can_be_given_to_the_next_request():
    one = run(FOUR, max_positions=32)
    first, second = hidden_states(11, FOUR, seed=1), hidden_states(14, FOUR, seed=2)
    one.step([Piece(1, 0, 11)], {1: first})
    one.step([Piece(1, 0, 3)], {1: second})
    one.step([Piece(1, 3, 11)], {1: second})
    assert_close(one.entries(1, 14), reference(second, one.parameters, FOUR), 1e-5)


def test_a_captured_step_follows_its_inputs():
    tokens = 12
    hidden = hidden_states(tokens, FOUR)
    one = run(FOUR, max_positions=tokens, max_tokens=2)
    all_hidden, step = one.upload(hidden), one.upload(np.array([0]))
    rows, positions = one.upload(np.array([1, 0])), one.upload(np.zeros(2, np.int64))
    states = one.upload(np.zeros((2, FOUR.hidden_dim), np.float32))

    def load(every, step, positions, states):
        positions[:1] = step
        states[:1] = every[step]
        step += 1

    take = Kernel("take", 1, load)
    with one.marked.capture(one.stream, "decode") as captured:
        one.marked.launch(take, one.stream, [all_hidden, step], [positions, states])
        inputs = {"hidden": states, "rows": rows, "positions": positions}
        one.compressor.launch(one.kernels(2, 2), one.stream, **inputs)
    for _ in range(tokens):
        one.marked.replay(captured[0], one.stream)
    assert_close(one.entries(1, tokens), reference(hidden, one.parameters, FOUR), 1e-5)


def test_more_entries_than_there_is_room_for_are_a_fault():
    one = run(FOUR, max_positions=8)
    hidden = one.upload(hidden_states(8, FOUR))
    rows, positions = one.upload(np.ones(8, np.int64)), one.upload(np.arange(8))
    kernels = one.compressor.kernels(1, project_ns=1, pool_ns=1)
    inputs = {"hidden": hidden, "rows": rows, "positions": positions}
    one.compressor.launch(kernels, one.stream, **inputs)
    with pytest.raises(MemoryFault, match="compressor_4_pool_store"):
        one.marked.synchronize()


@pytest.mark.parametrize("ratio", [4, 128])
def test_max_entries_is_the_most_that_any_places_give_up_to_one_too_many(ratio):
    shape = CompressorShape(hidden_dim=8, ratio=ratio, head_dim=8)
    for counts in ([1], [3], [5, 1], [6] * 4, [130], [127, 2], [300, 1, 1]):
        most = sum(
            max((first + count) // ratio - first // ratio for first in range(ratio))
            for count in counts
        )
        assert most <= shape.max_entries(sum(counts), len(counts)) <= most + len(counts)


def test_the_gemms_have_the_shapes_of_the_model():
    hidden = 7168
    four = CompressorShape(hidden, 4, 512)
    long = CompressorShape(hidden, 128, 512)
    indexer = CompressorShape(hidden, 4, 128, is_indexer=True)
    assert [shape.columns for shape in (four, indexer, long)] == [2048, 512, 1024]
