"""Numbers to text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.units import Unit, format_number, format_time, parse_duration


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, Unit.DURATION, "–"),
        (0, Unit.DURATION, "0 ns"),
        (0.4, Unit.DURATION, "0.4 ns"),
        (1340, Unit.DURATION, "1.34 µs"),
        (999_499, Unit.DURATION, "999 µs"),
        (999_600, Unit.DURATION, "1 ms"),
        (-12_345, Unit.DURATION, "-12.3 µs"),
        (1_500_000_000_000, Unit.DURATION, "1,500 s"),
        (1536, Unit.BYTES, "1.5 KiB"),
        (1023, Unit.BYTES, "1,023 B"),
        (0.521, Unit.SHARE, "52.1 %"),
        (0.0, Unit.SHARE, "0.0 %"),
        (0.0001, Unit.SHARE, "<0.1 %"),
        (1.81, Unit.RATIO, "1.810×"),
        (0.58437, Unit.RATE, "0.584 GB/s"),
        (1024, Unit.COUNT, "1,024"),
        (1024.5, Unit.COUNT, "1,024.5"),
        (255, Unit.ADDRESS, "0xff"),
        (7, Unit.ID, "7"),
        (0.123456, Unit.NONE, "0.1235"),
        (True, Unit.NONE, "True"),
        ("event_sync", Unit.NONE, "event_sync"),
    ],
)
def test_a_value_is_written_as_people_read_it(value, unit, text):
    assert format_number(value, unit) == text


@given(st.floats(min_value=1, max_value=1e18))
def test_a_duration_never_shows_four_digits_where_a_larger_unit_exists(value):
    number, suffix = format_number(value, Unit.DURATION).split()
    assert float(number.replace(",", "")) < 1000 or suffix == "s"
    assert "e" not in number


@pytest.mark.parametrize(
    ("time_ns", "origin_ns", "text"),
    [(None, 0, "–"), (12_345_678, 345_678, "12.000 ms"), (0, 1_500_000, "-1.500 ms")],
)
def test_an_instant_is_its_distance_from_the_origin(time_ns, origin_ns, text):
    assert format_time(time_ns, origin_ns) == text


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("10ms", 10_000_000),
        ("-1.5 s", -1_500_000_000),
        ("250", 250),
        (".5us", 500),
        ("2µs", 2000),
        ("2μs", 2000),
        ("+3 ns", 3),
        ("1700000000.123456789s", 1_700_000_000_123_456_789),
    ],
)
def test_a_duration_is_read_exactly(text, duration_ns):
    assert parse_duration(text) == duration_ns


@pytest.mark.parametrize("text", ["", "ms", "1.2.3", "1e3", "ten", "5 m", "step 12", "٣"])
def test_what_is_no_duration_is_none(text):
    assert parse_duration(text) is None


@given(st.integers(-(10**9), 10**9))
def test_an_instant_that_is_shown_can_be_typed_back(offset_us):
    assert parse_duration(format_time(1000 * offset_us, 0)) == 1000 * offset_us
