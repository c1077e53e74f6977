"""How many streams really run at once."""

from instrumented_runtime.devices import Device
from instrumented_runtime.probe import Figure, Findings, Probe, Verdict
from instrumented_runtime.probe.medians import is_above, summary
from instrumented_runtime.probe.programs import AT_ONCE_LIMIT, delays_ns, interleaved, run_at_once
from instrumented_runtime.probe.report import interval_text

_MOST_STREAMS = 64


def _run(device: Device, repetitions: int) -> Findings:
    """Find the most streams in which a delay each takes as long as one, by halving.

    The next stream makes one wait for another: the two share a hardware queue.
    """
    streams = [device.stream(name=f"probe stream {number}") for number in range(_MOST_STREAMS)]
    most, too_many = 1, _MOST_STREAMS + 1
    while too_many - most > 1:
        count = (most + too_many) // 2
        if run_at_once(device, streams[:count]):
            most = count
        else:
            too_many = count
    counts = [1, most, min(too_many, _MOST_STREAMS)]
    works = [lambda count=count: delays_ns(device, streams[:count]) for count in counts]
    times = interleaved(repetitions, works)
    one, fit, more = times.T
    at_most = summary("at_once_ratio", f"{most} at once, to one", "ratio", fit / one)
    figures = [
        summary("delay_ns", "a delay in one stream", "ns", one),
        at_most,
    ]
    if too_many > _MOST_STREAMS:
        verdict = _all_at_once(at_most)
        sure = verdict.answer == "no"
    else:
        beyond = summary("beyond_ratio", f"{too_many} at once, to one", "ratio", more / one)
        figures.append(beyond)
        verdict = _shared(most, at_most, beyond)
        sure = verdict.answer == "yes"
    bound = float(most) if sure else None
    figures.append(
        Figure("streams_at_once", "streams at once", "streams", most, bound, bound, repetitions)
    )
    return Findings(figures, [verdict])


def _shared(most: int, fit: Figure, beyond: Figure) -> Verdict:
    is_sure = is_above(fit, AT_ONCE_LIMIT) == "no" and is_above(beyond, AT_ONCE_LIMIT) == "yes"
    meaning = (
        f"beside a main stream {most - 1} side streams run; one more may wait for work that it "
        "does not depend on"
    )
    if most == 1:
        meaning = "side streams hide nothing here: no two streams run at once"
    return Verdict(
        "streams wait for each other in shared queues",
        "yes" if is_sure else "undecided",
        f"{most} at once; one more makes it {interval_text(beyond)}",
        meaning if is_sure else "the intervals hold 1.5×: run it again on an idle machine",
    )


def _all_at_once(fit: Figure) -> Verdict:
    is_sure = is_above(fit, AT_ONCE_LIMIT) == "no"
    return Verdict(
        "streams wait for each other in shared queues",
        "no" if is_sure else "undecided",
        f"{_MOST_STREAMS} streams to one, {interval_text(fit)}; more were not tried",
        f"{_MOST_STREAMS} streams may be used freely"
        if is_sure
        else "the interval holds 1.5×: run it again on an idle machine",
    )


PROBE = Probe("concurrency", "How many streams really run at once?", _run)
