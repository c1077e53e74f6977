"""Which arm each slot of an experiment runs, and whether time can be told from an arm afterwards.

A slot is one start of a server. Servers change over an hour whatever they run: an order that mixes
the arms keeps that apart from what the arms do.
"""

import random
import string
from collections.abc import Sequence

import numpy as np

from tracekit.errors import BadInput

RANDOMIZED = "randomized"
# Share of the difference between two arms that a cubic in time may explain: 0.05 of ABBA twice, 0.5
# if one of its ends is lost, but 0.88 of AAAABBBB, 0.76 of AABBBBAA and all of a single ABBA.
MOST_CONFOUNDED = 0.6
_WHERE = "order"


def slot_arms(order: str, arms: Sequence[str], *, blocks: int = 1, seed: int = 0) -> list[str]:
    """Return the arm of each slot.

    Args:
        order: Letters, `A` for the first arm: one block, repeated `blocks` times (`ABBA`,
            `ABCCBA`, `ABBA BAAB`; spaces and commas are skipped). Or `randomized`: each block is a
            permutation of the arms drawn by `seed` and then its mirror image, so that each arm
            runs twice and a straight drift cancels in every block.
        arms: Their names, two or more.
        blocks: How often.
        seed: Of the permutations.

    Raises:
        BadInput: A letter without an arm, an arm without a slot, or no block.
    """
    if len(arms) < 2 or len({*arms}) < len(arms):
        raise BadInput(_WHERE, f"{list(arms)} are not two or more different arms", "Name each once")
    if blocks < 1:
        raise BadInput(_WHERE, f"{blocks} blocks run nothing", "Give 1 or more")
    if order == RANDOMIZED:
        return _mirrored(arms, blocks, seed)
    letters = order.replace(" ", "").replace(",", "")
    of_letter = dict(zip(string.ascii_uppercase, arms, strict=False))
    if unknown := sorted({*letters} - {*of_letter}):
        known = f"{RANDOMIZED!r} or letters of {''.join(of_letter)}"
        raise BadInput(_WHERE, f"{order!r} has {', '.join(unknown)}", f"Give {known}")
    if idle := [arm for letter, arm in of_letter.items() if letter not in letters]:
        raise BadInput(_WHERE, f"{order!r} never runs {', '.join(idle)}", "Give it a slot")
    return [of_letter[letter] for letter in letters] * blocks


def _mirrored(arms: Sequence[str], blocks: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    found: list[str] = []
    for _ in range(blocks):
        block = draw.sample(list(arms), len(arms))
        found += [*block, *reversed(block)]
    return found


def confounding(arms: Sequence[str], positions: Sequence[float], base: str, head: str) -> float:
    """Return how much of the difference between two arms a slow change alone could be, 0 to 1.

    R² of the indicator of `head`, over the slots of the two arms, on a cubic in the position: 1 is
    an arm that no one can tell from a slow change. Slots that fix fewer than four terms have 1.
    """
    mine = [i for i, arm in enumerate(arms) if arm in (base, head)]
    times = np.array([positions[i] for i in mine], dtype=float)
    if len({*times.tolist()}) <= 4:
        return 1.0
    is_head = np.array([arms[i] == head for i in mine], dtype=float)
    middle, span = times.mean(), np.ptp(times)
    cubic = np.vander((times - middle) / span, 4)
    fitted = cubic @ np.linalg.lstsq(cubic, is_head, rcond=None)[0]
    apart = ((is_head - is_head.mean()) ** 2).sum()
    if apart == 0:
        return 1.0
    return float(1 - ((is_head - fitted) ** 2).sum() / apart)


def objections(
    arms: Sequence[str], positions: Sequence[float], base: str, head: str
) -> tuple[str, ...]:
    """Return why slots run in this order cannot decide between two arms; empty if they can."""
    share = confounding(arms, positions, base, head)
    if share <= MOST_CONFOUNDED:
        return ()
    letters = "".join("A" if arm == base else "B" for arm in arms if arm in (base, head))
    return (
        f"order {letters} does not tell {head} from a slow change of the machine, which could be "
        f"{share:.0%} of the difference: interleave the arms (ABBA, two blocks or more)",
    )


def imbalance(arms: Sequence[str], base: str, head: str) -> str | None:
    """Return a note if one of the two arms has fewer slots, which widens the interval."""
    counts = [sum(arm == name for arm in arms) for name in (base, head)]
    if counts[0] == counts[1]:
        return None
    return f"{base} has {counts[0]} slots and {head} {counts[1]}"
