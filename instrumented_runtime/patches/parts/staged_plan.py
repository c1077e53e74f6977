"""Brings a plan that AITER's planner makes on the host to device buffers in stream order."""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

# One is copied from while the other is planned into.
SLOTS = 2
# Of `get_ps_metadata_v1`: what comes first is read; `work_metadata` at 5 is never written.
OUTPUTS = slice(6, 11)
_REDUCE_INDPTR = 2


class StagedPlans:
    """Plans into page-locked memory, copies on the current stream.

    Attributes:
        last_host_plan: The outputs of the last plan on the host, in the planner's order, valid
            until the slot is planned into again; empty before the first.
        last_targets: The device tensors that it went to.
    """

    def __init__(self) -> None:
        """Hold no memory yet: it is taken at the first plan, and grows."""
        self._slots = [_Slot() for _ in range(SLOTS)]
        self._next = 0
        self.last_host_plan: Sequence[Any] = ()
        self.last_targets: Sequence[Any] = ()

    def staging(self, planner: Callable[..., Any]) -> Callable[..., Any]:
        """Return the planner, its outputs staged wherever they are given by position on a device.

        A caller that plans into host memory stages its own.
        """

        @functools.wraps(planner)
        def get_ps_metadata_v1(*arguments: Any, **options: Any) -> Any:
            targets = arguments[OUTPUTS]
            if len(targets) < OUTPUTS.stop - OUTPUTS.start or not _all_on_device(targets):
                return planner(*arguments, **options)
            slot = self._slots[self._next]
            self._next = (self._next + 1) % SLOTS
            host = slot.memory(targets)
            given = (*arguments[: OUTPUTS.start], *host, *arguments[OUTPUTS.stop :])
            result = planner(*given, **options)
            slot.copy(host, targets)
            self.last_host_plan, self.last_targets = host, targets
            return result

        return get_ps_metadata_v1

    def partial_tiles(self, reduce_indptr: Any) -> int | None:
        """Return how many partial tiles the plan in a device tensor has, without asking the device.

        None if the last plan went elsewhere.
        """
        if not self.last_targets or self.last_targets[_REDUCE_INDPTR] is not reduce_indptr:
            return None
        return int(self.last_host_plan[_REDUCE_INDPTR][-1])


class _Slot:
    """Page-locked memory for one plan, and the event behind its last copies."""

    def __init__(self) -> None:
        self._memory: list[Any] = [None] * (OUTPUTS.stop - OUTPUTS.start)
        self._copied: Any = None

    def memory(self, targets: Sequence[Any]) -> list[Any]:
        """Return host tensors shaped as the targets, once nothing copies from them any more."""
        if self._copied is not None:
            self._copied.synchronize()
        torch: Any = sys.modules["torch"]
        for i, target in enumerate(targets):
            memory = self._memory[i]
            if memory is None or memory.dtype != target.dtype or memory.numel() < target.numel():
                # Zeroed: the planner writes only as much as a plan needs, all of it is copied.
                self._memory[i] = torch.zeros(target.numel(), dtype=target.dtype, pin_memory=True)
        return [m[: t.numel()].view(t.shape) for m, t in zip(self._memory, targets, strict=True)]

    def copy(self, host: Sequence[Any], targets: Sequence[Any]) -> None:
        for source, target in zip(host, targets, strict=True):
            target.copy_(source, non_blocking=True)
        if self._copied is None:
            torch: Any = sys.modules["torch"]
            self._copied = torch.cuda.Event()
        self._copied.record()


def _all_on_device(tensors: Sequence[Any]) -> bool:
    return all(getattr(t, "device", None) is not None and t.device.type != "cpu" for t in tensors)
