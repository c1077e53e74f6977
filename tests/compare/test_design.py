"""Orders of slots, and which of them can tell an arm from time."""

from collections import Counter

import numpy as np
import pytest

from tracekit.compare.design import confounding, imbalance, objections, slot_arms
from tracekit.errors import BadInput


def test_letters_are_arms_in_order_and_blocks_repeat():
    assert slot_arms("ABBA", ["old", "new"], blocks=2) == ["old", "new", "new", "old"] * 2
    assert slot_arms("ABCCBA", ["x", "y", "z"]) == ["x", "y", "z", "z", "y", "x"]
    assert slot_arms("AB, BA", ["x", "y"]) == ["x", "y", "y", "x"]


def test_a_randomized_block_has_each_arm_twice_around_its_middle():
    slots = slot_arms("randomized", "ABC", blocks=4, seed=7)
    blocks = [slots[i : i + 6] for i in range(0, 24, 6)]
    for block in blocks:
        assert block == block[::-1]
        assert Counter(block) == {"A": 2, "B": 2, "C": 2}
    assert len({tuple(block) for block in blocks}) > 1
    assert slots == slot_arms("randomized", "ABC", blocks=4, seed=7)
    assert slots != slot_arms("randomized", "ABC", blocks=4, seed=8)


@pytest.mark.parametrize(
    ("order", "arms", "blocks", "said"),
    [
        ("ABBC", ["x", "y"], 1, "has C"),
        ("abba", ["x", "y"], 1, "has a, b"),
        ("AABB", ["x", "y", "z"], 1, "never runs z"),
        ("", ["x", "y"], 1, "never runs x, y"),
        ("ABBA", ["x", "y"], 0, "0 blocks"),
        ("AA", ["x"], 1, "two or more"),
        ("ABBA", ["x", "x"], 1, "two or more"),
    ],
)
def test_an_order_that_cannot_run_is_refused(order, arms, blocks, said):
    with pytest.raises(BadInput, match=said):
        slot_arms(order, arms, blocks=blocks)


def test_confounding_is_the_share_that_orthogonal_polynomials_explain():
    # Orthogonal polynomials of 8 equal steps, from published tables.
    line = np.array([-7, -5, -3, -1, 1, 3, 5, 7])
    square = np.array([7, 1, -3, -5, -5, -3, 1, 7])
    cube = np.array([-7, 5, 7, 3, -3, -7, -5, 7])
    for order in ("ABBAABBA", "AAAABBBB", "ABABABAB", "AABBBBAA"):
        centered = np.array([0.5 if letter == "B" else -0.5 for letter in order])
        explained = sum((centered @ p) ** 2 / (p @ p) for p in (line, square, cube)) / 2
        assert confounding(order, range(8), "A", "B") == pytest.approx(explained)


@pytest.mark.parametrize("order", ["ABBA" * 2, "ABBA" * 3, "AB" * 4, "ABBABAAB", "AABB" * 2])
def test_interleaved_orders_can_decide(order):
    assert objections(order, range(len(order)), "A", "B") == ()


@pytest.mark.parametrize("order", ["AAAABBBB", "BBBBAAAA", "AAAAAABBBBBB", "AABBBBAA", "ABBA"])
def test_an_order_that_time_could_explain_is_objected_to(order):
    (said,) = objections(order, range(len(order)), "A", "B")
    assert order in said
    assert "interleave" in said


def test_only_slots_of_the_two_arms_count_at_the_places_they_ran():
    order = "ABCCBA" * 2
    share = confounding(order, range(12), "A", "C")
    assert share == pytest.approx(confounding("ACCAACCA", (0, 2, 3, 5, 6, 8, 9, 11), "A", "C"))
    assert share != pytest.approx(confounding("ACCAACCA", range(8), "A", "C"), abs=1e-3)


def test_lost_slots_show_as_imbalance():
    assert imbalance("ABBA", "A", "B") is None
    assert imbalance("ABB", "A", "B") == "A has 1 slots and B 2"


def test_every_single_lost_slot_leaves_two_blocks_able_to_decide():
    for lost in range(8):
        kept = [i for i in range(8) if i != lost]
        assert objections(["ABBAABBA"[i] for i in kept], kept, "A", "B") == ()
