"""Units of table columns, and numbers to text: nothing else in the project formats numbers."""

from enum import StrEnum


class Unit(StrEnum):
    """What a column's number means; reports format by it and tests shift times by it."""

    TIME = "ns on the trace's clock"
    DURATION = "ns"
    SHARE = "0 to 1"
    RATIO = "ratio"
    BYTES = "bytes"
    COUNT = "count"
    ADDRESS = "address"
    ID = "id"
    NONE = ""


_DURATIONS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
_BYTES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def _scaled(value: float, steps: tuple[tuple[int, str], ...]) -> str:
    for size, suffix in steps:
        if abs(value) >= size:
            scaled = value / size
            return f"{scaled:.3g} {suffix}" if abs(scaled) < 1000 else f"{scaled:,.0f} {suffix}"
    return f"{value:.3g} {steps[-1][1]}" if value else f"0 {steps[-1][1]}"


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
            return f"{100 * value:.1f} %"
        case Unit.RATIO:
            return f"{value:.3f}×"
        case Unit.COUNT:
            return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
        case Unit.ADDRESS:
            return f"0x{int(value):x}"
        case _:
            return str(value)
