"""Ways in which a Kineto file of CUDA can lose evidence, each done to a copy of the file itself."""

import gzip
import json
import random

_EVENT_CALLS = (
    "cudaEventRecord",
    "cudaEventRecordWithFlags",
    "cudaEventSynchronize",
    "cudaStreamWaitEvent",
    "cudaStreamSynchronize",
)


def _is_call(event):
    return event.get("cat") in ("cuda_runtime", "cuda_driver")


def _is_event_call(event):
    return _is_call(event) and event["name"] in _EVENT_CALLS


def _is_wait(event):
    return _is_call(event) and event["name"].endswith("Synchronize")


def _is_row(event):
    return event.get("cat") in ("cuda_sync", "cuda_event")


def _is_marker(event):
    return event.get("name", "").startswith("tk1 ")


def _is_event_marker(event):
    return event.get("name", "").startswith(("tk1 record", "tk1 wait", "tk1 sync"))


def _is_op(event):
    return event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")


def _is_any(event):
    return any(kind(event) for kind in (_is_call, _is_row, _is_marker, _is_op))


def _is_about_events(event):
    return _is_event_call(event) or _is_row(event) or _is_event_marker(event)


# What is dropped at random, what share of it, and what is not there at all.
WAYS = {
    "half_of_the_event_calls": (_is_event_call, 0.5, None),
    "half_of_the_events": (_is_about_events, 0.5, None),
    "half_of_the_events_without_rows": (_is_about_events, 0.5, _is_row),
    "half_of_the_events_without_markers": (_is_about_events, 0.5, _is_marker),
    "half_of_the_event_calls_without_rows": (_is_event_call, 0.5, _is_row),
    "all_waits": (_is_wait, 1, None),
    "half_of_the_calls": (_is_call, 0.5, None),
    "half_of_the_calls_alone": (_is_call, 0.5, lambda one: _is_row(one) or _is_marker(one)),
    "half_of_the_rows": (_is_row, 0.5, None),
    "half_of_the_ops": (_is_op, 0.5, None),
    "few_ops": (_is_op, 0.02, None),
    "few_of_all": (_is_any, 0.02, None),
    "half_of_all": (_is_any, 0.5, None),
}
LOSES_OPS = ("half_of_the_ops", "few_ops", "few_of_all", "half_of_all")


def lose(path, target, way, seed):
    """Copy a trace to `target` without some of its events; return `target`."""
    dropped, share, never = WAYS[way]
    chance = random.Random(seed)
    with gzip.open(path, "rt") as file:
        trace = json.load(file)
    trace["traceEvents"] = [
        event
        for event in trace["traceEvents"]
        if not (never and never(event)) and not (dropped(event) and chance.random() < share)
    ]
    with gzip.open(target, "wt", 1) as file:
        json.dump(trace, file)
    return target
