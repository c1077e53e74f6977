"""Units of table columns; numbers to text and back: nothing else in the project formats numbers."""

import re
from decimal import Decimal
from enum import StrEnum


class Unit(StrEnum):
    """What a column's number means; reports format by it and tests shift times by it."""

    TIME = "ns on the trace's clock"
    DURATION = "ns"
    SHARE = "0 to 1"
    RATIO = "ratio"
    BYTES = "bytes"
    RATE = "GB/s"
    COUNT = "count"
    PER_S = "per s"
    MEAN = "mean of counts"
    ADDRESS = "address"
    ID = "id"
    NONE = ""


_DURATIONS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
_BYTES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_NS_PER = {suffix: size for size, suffix in _DURATIONS} | {"us": 1_000, "": 1}
_DURATION = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))\s*(ns|us|µs|μs|ms|s|)", re.ASCII)


def _three_digits(value: float) -> str:
    # `.3g` turns 999.6 into 1e+03.
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def _scaled(value: float, steps: tuple[tuple[int, str], ...]) -> str:
    for size, suffix in steps:
        # What would round up to the next step is shown in it: 1 ms, not 1,000 µs.
        if abs(value) >= size * 0.9995 and (size > 1 or abs(value) >= 1):
            return f"{_three_digits(value / size)} {suffix}"
    return f"{_three_digits(value)} {steps[-1][1]}"


def _counted(value: float, unit: Unit) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    is_coarse = unit is Unit.COUNT or abs(value) >= 999.95
    return f"{value:,.1f}" if is_coarse else f"{value:.4g}"


def format_number(value: float | str | None, unit: Unit) -> str:
    """Return a value as people read it: `1.34 µs`, `52.1 %`, `1,024`, `–` for unknown."""
    if value is None:
        return "–"
    if isinstance(value, str | bool):
        return str(value)
    match unit:
        case Unit.DURATION:
            return _scaled(value, _DURATIONS)
        case Unit.BYTES:
            return _scaled(value, _BYTES)
        case Unit.SHARE:
            # Little is not nothing: 0.0 % is kept for an exact zero.
            return "<0.1 %" if 0 < value < 0.0005 else f"{100 * value:.1f} %"
        case Unit.RATIO:
            return f"{value:.3f}×"
        case Unit.RATE:
            return f"{_three_digits(value)} GB/s"
        case Unit.COUNT | Unit.PER_S | Unit.MEAN:
            return _counted(value, unit)
        case Unit.ADDRESS:
            return f"0x{int(value):x}"
        case _:
            return str(value) if isinstance(value, int) else f"{value:.4g}"


def format_time(time_ns: int | None, origin_ns: int) -> str:
    """Return an instant as its distance from `origin_ns`, to the microsecond: `12.345 ms`.

    Always in milliseconds and without separators, so that a column of instants compares at a glance
    and one pastes into `--window`.
    """
    return "–" if time_ns is None else f"{(time_ns - origin_ns) / 1e6:.3f} ms"


def parse_duration(text: str) -> int | None:
    """Return a signed duration in nanoseconds (`10ms`, `-1.5 s`, `250`), or None if it is none.

    A number without a unit is in nanoseconds. Exact: fractions of a nanosecond are cut.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        return None
    # U+03BC (Greek mu) and U+00B5 (micro sign) look the same on a keyboard and on screen.
    return int(Decimal(found[1]) * _NS_PER[found[2].replace("μ", "µ")])
