"""Decimal microseconds to whole nanoseconds, exactly."""

from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl

_EXACT_FLOAT_BELOW_US = 2.0**43
_EXACT_INT_BELOW_US = 2**53
_DIGITS = pl.Decimal(25, 6)  # a thousand times as much still fits 38 digits


class InexactTimesError(Exception):
    """Only the digits of these times tell them exactly."""


def nanoseconds(microseconds: Sequence[Any]) -> pl.Series:
    """Return JSON numbers of microseconds as nanoseconds; null where there is no number.

    Given JSON text (`msgspec.Raw`), the digits are read as decimals, cut off below the nanosecond.

    Given numbers, the whole part and the rest of a float are scaled apart. Below 2^43 µs a double
    is less than half a nanosecond from the three decimals that were written, so rounding the rest
    returns them (scaling the double in one go does not: it rounds twice). Kineto counts from a base
    time at most a quarter of a year back, which keeps its times below that.

    Raises:
        InexactTimesError: The numbers are beyond that, or not all of them are numbers.
    """
    if not microseconds:
        return pl.Series(dtype=pl.Int64)
    if isinstance(microseconds[0], msgspec.Raw):
        return _from_digits(microseconds)
    try:
        whole = pl.Series(microseconds, dtype=pl.Int64)
    except (TypeError, OverflowError):
        return _from_floats(microseconds)
    if whole.is_between(-_EXACT_INT_BELOW_US, _EXACT_INT_BELOW_US).all():
        return whole * 1000
    raise InexactTimesError


def _from_floats(microseconds: Sequence[Any]) -> pl.Series:
    try:
        numbers = pl.Series(microseconds, dtype=pl.Float64)
    except (TypeError, OverflowError) as error:
        raise InexactTimesError from error
    is_exact = numbers.is_between(-_EXACT_FLOAT_BELOW_US, _EXACT_FLOAT_BELOW_US, closed="none")
    if numbers.null_count() or not is_exact.all():
        raise InexactTimesError
    whole = numbers.floor()
    thousandths = ((numbers - whole) * 1000).round()
    return whole.cast(pl.Int64) * 1000 + thousandths.cast(pl.Int64)


def _from_digits(texts: Sequence[msgspec.Raw]) -> pl.Series:
    numbers = [bytes(text).decode("ascii", "replace").strip('"') for text in texts]
    decimals = pl.Series(numbers, dtype=pl.String).cast(_DIGITS, strict=False)
    return (decimals * 1000).cast(pl.Int64, strict=False)
