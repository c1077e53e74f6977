"""Kineto times become whole nanoseconds without losing one."""

import random
from decimal import Decimal

import msgspec
import polars as pl
import pytest

from tracekit.formats.kineto.times import InexactTimesError, nanoseconds


def _as_text(numbers):
    return nanoseconds([msgspec.Raw(number.encode()) for number in numbers]).to_list()


def _as_numbers(numbers):
    return nanoseconds(msgspec.json.decode("[" + ",".join(numbers) + "]")).to_list()


def test_epoch_microseconds_keep_their_nanoseconds_where_a_float_loses_them():
    text = "1767189312000000.123"
    assert _as_text([text]) == [1_767_189_312_000_000_123]
    assert round(float(text) * 1000) != 1_767_189_312_000_000_123


def test_digits_are_read_exactly_however_they_are_written():
    written = ["12", "0.1", "1.25", "3.001", "-2.5", "1e3", "1.5E+2", '"7.125"', "4.123456"]
    expected = [12_000, 100, 1_250, 3_001, -2_500, 1_000_000, 150_000, 7_125, 4_123]
    assert _as_text(written) == expected


def test_what_is_no_number_is_null_and_moves_no_neighbour():
    assert _as_text(["1", "null", "[1,\n2]", '""', "true", "2"]) == [1000, *[None] * 4, 2000]


def test_floats_below_the_bound_agree_with_decimals_to_the_last_digit():
    random.seed(20240612)
    wholes = [random.randrange(2**43) for _ in range(50_000)]
    wholes += [2**43 - 1 - n for n in range(50_000)]
    written = [f"{whole}.{random.randrange(1000):03}" for whole in wholes]
    assert _as_numbers(written) == [int(Decimal(text) * 1000) for text in written]


def test_scaling_a_float_in_one_go_would_be_wrong():
    random.seed(20240612)
    written = [f"{random.randrange(2**42, 2**43)}.{random.randrange(1000):03}" for _ in range(9999)]
    exact = [int(Decimal(text) * 1000) for text in written]
    assert [round(float(text) * 1000) for text in written] != exact
    assert _as_numbers(written) == exact


@pytest.mark.parametrize("numbers", [[2.0**43 + 0.125], [1.0, None], ["1.5"], [2**60]])
def test_numbers_that_cannot_be_exact_are_refused_rather_than_rounded(numbers):
    with pytest.raises(InexactTimesError):
        nanoseconds(numbers)


def test_whole_microseconds_since_the_epoch_need_no_text():
    assert _as_numbers(["1695835542514261"]) == [1_695_835_542_514_261_000]


def test_no_times_make_an_empty_column():
    assert nanoseconds([]).equals(pl.Series(dtype=pl.Int64))
