"""Figures and verdicts as text, and all of it as plain values."""

from dataclasses import asdict
from textwrap import wrap

from instrumented_runtime.probe import Figure, Findings, Probe, Unit

SCHEMA = "instrumented_runtime.probe/1"
_WIDTH = 100


def time_text(ns: float) -> str:
    """Return a time in the unit that suits it."""
    return "{1:.{2}f} {0}".format(*_scaled(ns, "ns"))


def interval_text(figure: Figure) -> str:
    """Return median, interval and n in one line."""
    if figure.median is None:
        return "no valid repetition"
    return f"{_median(figure)} [{_interval(figure)}], n = {figure.n}"


def table(probe: Probe, findings: Findings) -> list[str]:
    """Return the lines of one probe."""
    lines = [
        f"{probe.name}  {probe.question}",
        "",
        f"  {'':<46}{'median':>14}{'95 % interval':>28}{'n':>6}",
    ]
    for figure in findings.figures:
        columns = f"{_median(figure):>14}{_interval(figure):>28}{figure.n:>6}"
        lines.append(f"  {figure.what:<46}{columns}")
    for verdict in findings.verdicts:
        said = f"{verdict.hazard}: {verdict.answer}, {verdict.evidence}"
        lines += ["", *_hanging(said, "  "), *_hanging(f"→ {verdict.meaning}", "    ")]
    return [*lines, ""]


def as_json(probe: Probe, findings: Findings) -> dict[str, object]:
    """Return the plain values of one probe."""
    return {
        "name": probe.name,
        "question": probe.question,
        "figures": [asdict(figure) | {"what": figure.what.strip()} for figure in findings.figures],
        "verdicts": [asdict(verdict) for verdict in findings.verdicts],
    }


def _hanging(text: str, indent: str) -> list[str]:
    return wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ")


def _median(figure: Figure) -> str:
    if figure.median is None:
        return "–"
    unit, value, digits = _scaled(figure.median, figure.unit)
    return f"{value:.{digits}f}{unit if unit == '×' else f' {unit}'}".rstrip()


def _interval(figure: Figure) -> str:
    if figure.median is None or figure.low is None or figure.high is None:
        return "–"
    unit, value, digits = _scaled(figure.median, figure.unit)
    factor = value / figure.median if figure.median else 1.0
    low, high = figure.low * factor, figure.high * factor
    return f"{low:.{digits}f} to {high:.{digits}f}{unit if unit == '×' else f' {unit}'}".rstrip()


def _scaled(value: float, unit: Unit) -> tuple[str, float, int]:
    """Return the unit to show, the value in it, and how many digits after the point."""
    if unit == "ratio":
        return "×", value, 2
    if unit == "streams":
        return "", value, 0
    if unit == "bytes_per_ns":
        return "GB/s", value, 1
    if abs(value) < 1_000:
        return "ns", value, 0
    if abs(value) < 1_000_000:
        return "µs", value / 1_000, 2
    return "ms", value / 1_000_000, 2
