"""SGLang on HIP: with speculation, the scheduler works on the forward stream and does not block.

With overlap scheduling the next batch needs lengths that the running forward publishes. On HIP the
host waits for them, since a wait on the scheduler's own stream would stay pending in another
hardware queue and slow every dispatch of the forward. On the forward stream itself their order is
given: neither is needed.
"""

import ast
import contextlib
import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import Patch, Site, Verdict
from .parts import source
from .parts.work import Work

OVERLAP = "sglang.srt.managers.overlap_utils"
SCHEDULER = "sglang.srt.managers.scheduler"

_LOOP = "Scheduler.run_event_loop"
_BLOCKED = "self.publish_ready.synchronize()"
_QUEUED = "self.publish_ready.wait()"


def _check() -> Verdict:
    # The server has imported torch by now.
    torch: Any = sys.modules["torch"]
    if torch.version.hip is None:
        return Verdict("not-needed", "not HIP: there a pending wait in another queue costs nothing")
    scheduler = source.tree(SCHEDULER)
    classes = [n for n in scheduler.body if isinstance(n, ast.ClassDef) and n.name == "Scheduler"]
    if any("self.forward_stream" in source.assigned(c, "self.schedule_stream") for c in classes):
        return Verdict("not-needed", "the scheduler can work on the forward stream already")
    _check_loop(source.function(scheduler, _LOOP))
    source.require_names(scheduler, SCHEDULER, ["dispatch_event_loop", "get_parallel"])
    _check_waits(source.tree(OVERLAP))
    return Verdict("needed", "on HIP the host waits for published lengths")


def _check_loop(loop: ast.FunctionDef) -> None:
    # The scheduler's stream is drawn once more if it is the forward's by chance. What comes after,
    # the loop itself, must run under whatever stream the scheduler has then.
    placed = [
        node
        for node in ast.walk(loop)
        if isinstance(node, ast.With)
        and "StreamContext(self.schedule_stream)" in ast.unparse(node.items[0])
        and source.calls(node, "dispatch_event_loop")
    ]
    if len(placed) != 1:
        raise source.Unfit(f"{_LOOP} does not place the loop on schedule_stream as known")


def _check_waits(overlap: ast.Module) -> None:
    choices = [
        node
        for node in ast.walk(overlap)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "_is_hip"
    ]
    known = [
        [ast.unparse(line) for line in (*node.body, *node.orelse)] == [_BLOCKED, _QUEUED]
        for node in choices
    ]
    if not choices or not all(known) or source.uses(overlap, "_is_hip") != len(choices):
        raise source.Unfit(
            "FutureMap waits for published lengths in another way than the known one"
        )
    whole = ast.unparse(overlap)
    if whole.count("publish_ready.synchronize()") != len(choices):
        raise source.Unfit("FutureMap blocks the host at a place this patch does not know")


def _apply(name: str, module: ModuleType, work: Work) -> Verdict:
    if name == SCHEDULER:
        work.replace(module, "dispatch_event_loop", lambda loop: _placed(loop, module, work))
    return Verdict("waiting", "decides when the scheduler's loop begins")


def _placed(loop: Callable[..., Any], module: Any, work: Work) -> Callable[..., Any]:
    @functools.wraps(loop)
    def dispatch_event_loop(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        current = contextlib.nullcontext()
        # A patch may fail in ways nobody thought of; the server must not.
        try:
            verdict = _decision(scheduler, module)
            if verdict.state == "applied":
                current = _moved(scheduler)
        except Exception as problem:
            verdict = Verdict("refused", f"the scheduler is not as known: {problem!r}")
        work.say(verdict.state, verdict.reason)
        with current:
            return loop(scheduler, *args, **kwargs)

    return dispatch_event_loop


def _moved(scheduler: Any) -> Any:
    """Let the scheduler work on the forward stream; return what makes that current.

    Whatever can fail comes before anything is changed.
    """
    forward, overlap = scheduler.forward_stream, sys.modules[OVERLAP]
    current = scheduler.device_module.StreamContext(forward)
    # What the scheduler has queued so far stays before what it queues now.
    forward.wait_stream(scheduler.schedule_stream)
    scheduler.schedule_stream = forward
    # Here it chooses one thing only, checked above: whether the host waits, or the stream that is
    # current. That is the forward's own now.
    overlap._is_hip = False  # type: ignore[attr-defined]
    return current


def _decision(scheduler: Any, module: Any) -> Verdict:
    if not scheduler.enable_overlap:
        return Verdict("not-needed", "overlap scheduling is off")
    if scheduler.spec_algorithm.is_none():
        return Verdict("not-needed", "without speculation the scheduler waits for no lengths")
    if module.get_parallel().pp_size > 1:
        return Verdict("refused", "with pipeline parallelism the stages cannot share a stream")
    disaggregated = scheduler.disaggregation_mode.name != "NULL"
    if disaggregated or scheduler.enable_pdmux or scheduler.server_args.enable_pd_role_switch:
        return Verdict("refused", "only the plain overlap loop is known to be safe on one stream")
    if scheduler.future_map.needs_cpu_seq_lens:
        # The lengths are then copied to the host on the current stream: behind the draft that
        # follows the verify, which makes the host wait longer than for the verify alone.
        return Verdict(
            "refused",
            "the attention backend reads lengths on the host, which would "
            "block for the whole forward instead of its verify",
        )
    return Verdict("applied", "the scheduler works on the forward stream")


PATCH = Patch("forward-stream-scheduling", "sglang", (Site((OVERLAP, SCHEDULER), _check, _apply),))
