"""SGLang: requests that fit into the free slots together are admitted, not held back.

The delayer holds fresh prefills until a threshold of slots is free. When fewer requests wait than
that, no company comes for them: they wait until running ones end. Patched, it delays only while
free slots are fewer than the threshold and fewer than the requests that wait.
"""

import ast
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import Patch, Site, Verdict
from .parts import source
from .parts.work import Work

DELAYER = "sglang.srt.managers.min_free_slots_delayer"
SCHEDULER = "sglang.srt.managers.scheduler"

_METHOD = "MinFreeSlotsDelayer.should_delay"
_CALLER = "Scheduler._get_new_batch_prefill_raw"
_KNOWN = ["running_bs", "num_allocatable_reqs"]
_RULE = "running_bs > 0 and num_allocatable_reqs < self._min_free_slots"
# Where a delayer finds its scheduler, which has the queue.
_SCHEDULER = "_tracekit_scheduler"


def _check() -> Verdict:
    delayer = source.function(source.tree(DELAYER), _METHOD)
    takes = source.parameters(delayer)
    waiting = [name for name in takes if "waiting" in name]
    if waiting:
        return Verdict("not-needed", f"{_METHOD} takes {waiting[0]} already")
    source.require_parameters(delayer, _METHOD, _KNOWN)
    rule = [ast.unparse(node) for node in ast.walk(delayer) if isinstance(node, ast.Return)]
    if rule != [f"return {_RULE}"]:
        raise source.Unfit(f"{_METHOD} decides by another rule than the known one")
    scheduler = source.tree(SCHEDULER)
    caller = source.function(scheduler, _CALLER)
    asked = source.only_call(caller, "self.min_free_slots_delayer.should_delay", _CALLER)
    if [word.arg for word in asked.keywords] != _KNOWN or asked.args:
        raise source.Unfit(f"{_CALLER} asks the delayer in another way than the known one")
    if not source.calls(caller, "len") or "self.waiting_queue" not in ast.unparse(caller):
        raise source.Unfit(f"{_CALLER} has no waiting_queue")
    return Verdict("needed", f"{_METHOD} does not know how many requests wait")


def _apply(name: str, module: ModuleType, work: Work) -> Verdict:
    if name == DELAYER:
        work.replace(module.MinFreeSlotsDelayer, "should_delay", _counting_waiting)
    else:
        work.replace(module.Scheduler, "_get_new_batch_prefill_raw", _telling_the_delayer)
    return Verdict("applied", "prefills wait only while more requests wait than slots are free")


def _counting_waiting(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def should_delay(
        self: Any,
        *,
        running_bs: int,
        num_allocatable_reqs: int,
        num_waiting_reqs: int | None = None,
    ) -> bool:
        delays = original(self, running_bs=running_bs, num_allocatable_reqs=num_allocatable_reqs)
        if num_waiting_reqs is None:
            scheduler = getattr(self, _SCHEDULER, None)
            if scheduler is None:
                return delays
            # Read at the call: the caller moves requests into the queue before it.
            num_waiting_reqs = len(scheduler.waiting_queue)
        return delays and num_allocatable_reqs < num_waiting_reqs

    return should_delay


def _telling_the_delayer(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _get_new_batch_prefill_raw(self: Any, *args: Any, **kwargs: Any) -> Any:
        delayer = self.min_free_slots_delayer
        if delayer is not None:
            setattr(delayer, _SCHEDULER, self)
        return original(self, *args, **kwargs)

    return _get_new_batch_prefill_raw


PATCH = Patch("min-free-slots", "sglang", (Site((DELAYER, SCHEDULER), _check, _apply),))
