"""Holding prefills back until several can be admitted at once, as SGLang's option of that name."""

from dataclasses import dataclass
from typing import get_args

from instrumented_runtime.config import DelayRule


def resolve_min_free_slots(
    user_value: int | None, max_running_requests: int, *, is_dflash_family: bool
) -> int:
    """Return from how many free slots on prefills are admitted; 0 never delays.

    The numbers are SGLang's (0.5.23): what the user gives counts, at most the slots there are, and
    what is not above 1 turns the delay off. Without it only the drafters of the DFlash family, to
    which DSpark belongs, delay, with 2 to 4 slots, and from 8 slots on.
    """
    if user_value is not None:
        capped = min(user_value, max_running_requests)
        return capped if capped > 1 else 0
    if is_dflash_family and max_running_requests >= 8:
        return min(4, max(2, (max_running_requests + 5) // 6))
    return 0


@dataclass(frozen=True, slots=True)
class MinFreeSlotsDelayer:
    """Says whether prefills should wait for more free slots. It remembers nothing.

    A prefill stops the decode of all that run, so it is worth it to admit several at once. The rule
    `free-slots` looks at the free slots only, and so waits for company that does not exist: when a
    burst has filled the server but for the last threshold − 1 slots and no more requests are queued
    than fit into them, no further arrival is needed and none of the running ones is about to end,
    yet those few stay in the queue until enough of the running batch has decoded to its end. The
    rule `free-slots-and-waiting` delays only while more are waiting than there are free slots;
    whoever can be admitted with all that wait is.

    Attributes:
        min_free_slots: The threshold, as `resolve_min_free_slots` returns it.
        rule: Which of the two decides.
    """

    min_free_slots: int
    rule: DelayRule = "free-slots-and-waiting"

    def __post_init__(self) -> None:
        """Refuse what is no threshold and no rule.

        Raises:
            ValueError: Names the field and what is allowed.
        """
        if self.min_free_slots < 0:
            raise ValueError(
                f"min_free_slots: {self.min_free_slots} is not allowed; give a number ≥ 0"
            )
        if self.rule not in get_args(DelayRule):
            raise ValueError(
                f"rule: {self.rule!r} is not allowed; give one of {', '.join(get_args(DelayRule))}"
            )

    def should_delay(
        self,
        *,
        running_bs: int,
        num_allocatable_reqs: int,
        num_waiting_reqs: int | None = None,
        **_more: object,
    ) -> bool:
        """Return whether prefills wait; never while nothing runs, for then nobody would end.

        The names are those of SGLang's callers, which differ between versions in what they say
        beyond the first two: the number waiting may be missing, and then `free-slots` decides,
        and what we do not know of is ignored.
        """
        delays = running_bs > 0 and num_allocatable_reqs < self.min_free_slots
        if self.rule == "free-slots" or num_waiting_reqs is None:
            return delays
        return delays and num_allocatable_reqs < num_waiting_reqs
