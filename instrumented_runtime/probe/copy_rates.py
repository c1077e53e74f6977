"""How fast blocking copies to and from the device are, of pinned and of pageable memory."""

import numpy as np

from instrumented_runtime.devices import Buffer, Device
from instrumented_runtime.probe import Findings, Probe, Verdict
from instrumented_runtime.probe.medians import is_above, summary
from instrumented_runtime.probe.programs import interleaved
from instrumented_runtime.probe.report import interval_text

_SHORT_BYTES, _LONG_BYTES = 16 << 20, 64 << 20
_MORE_BYTES = _LONG_BYTES - _SHORT_BYTES
_LIMIT = 1.1
_MEANINGS = {
    "yes": "keep what is uploaded often in pinned memory",
    "no": "pinned memory is no faster here; it still lets the host run on (copy_async)",
    "undecided": "the interval holds 1.1×: run it again on an idle machine",
}


def _run(device: Device, repetitions: int) -> Findings:
    """Time copies of 16 and 64 MiB; the rate is that of the bytes which the longer has more."""
    on_device = device.allocate([_LONG_BYTES], "uint8", name="probe copy")
    pinned, pageable = (
        device.host_buffer([_LONG_BYTES], "uint8", pinned=is_pinned, name="probe host")
        for is_pinned in (True, False)
    )
    for host in (pinned, pageable):
        # Memory that nobody wrote has no pages of its own yet.
        device.copy(host, on_device)
    sides = [(on_device, pinned), (on_device, pageable), (pinned, on_device), (pageable, on_device)]
    works = [
        lambda to=to, of=of, size=size: _copy_ns(device, to, of, size)
        for to, of in sides
        for size in (_SHORT_BYTES, _LONG_BYTES)
    ]
    times = interleaved(repetitions, works)
    more_ns = (times[:, 1::2] - times[:, ::2]).astype(np.float64)
    more_ns[more_ns <= 0] = np.nan  # the longer one was not: an outlier in the shorter
    device.free(on_device)
    to_pinned, to_pageable, from_pinned, from_pageable = more_ns.T
    staging_ns = to_pageable - to_pinned
    staging_ns[staging_ns <= 0] = np.nan
    ratio = summary(
        "pageable_ratio", "pageable to pinned, time, to device", "ratio", to_pageable / to_pinned
    )
    figures = [
        summary(f"{name}_bytes_per_ns", what, "bytes_per_ns", _MORE_BYTES / taken)
        for name, what, taken in (
            ("h2d_pinned", "pinned to device", to_pinned),
            ("h2d_pageable", "pageable to device", to_pageable),
            ("staging", "  the part of it that pinned lacks", staging_ns),
            ("d2h_pinned", "device to pinned", from_pinned),
            ("d2h_pageable", "device to pageable", from_pageable),
        )
    ]
    answer = is_above(ratio, _LIMIT)
    verdict = Verdict(
        "pageable memory slows copies to the device",
        answer,
        interval_text(ratio),
        _MEANINGS[answer],
    )
    return Findings([*figures, ratio], [verdict])


def _copy_ns(device: Device, destination: Buffer, source: Buffer, size_bytes: int) -> int:
    device.synchronize()
    start = device.now_ns
    device.copy(destination, source, size_bytes=size_bytes)
    # CUDA's may return from pageable memory before the last bytes are there.
    device.synchronize()
    return device.now_ns - start


PROBE = Probe("copy-rates", "How fast are blocking copies?", _run)
