"""The report for a terminal."""

import os
import re
from pathlib import Path

import pytest

from tracekit.reports import Screen, renderers, shortened

GOLDEN = Path(__file__).parent / "golden" / "report.txt"
render = renderers()["text"].render


def test_the_report_reads_like_the_golden_file(report):
    """After a wanted change: TRACEKIT_GOLDEN=write pytest tests/reports/test_text.py, then read."""
    text = render(report, Screen(width=100))
    if os.environ.get("TRACEKIT_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(report, width):
    lines = render(report, Screen(width=width)).splitlines()
    # Commands to copy and a table's narrowest columns may not be cut.
    too_wide = [line for line in lines if len(line) > width]
    assert too_wide == []


def test_a_narrow_terminal_loses_whole_columns_and_never_part_of_a_number(report):
    text = render(report, Screen(width=60))
    assert "Columns that do not fit here: stream, first." in text
    assert re.search(r"kernel +1,234 +400 µs +40\.0 %$", text, re.MULTILINE)
    assert not re.search(r"\d…|…\d", text)


def test_a_bar_fills_the_line_and_its_parts_are_to_scale(report):
    bars = [line for line in render(report, Screen(100)).splitlines() if line.startswith("█")]
    assert [len(bar) for bar in bars] == [100, 100]
    assert [bars[0].count(glyph) for glyph in "█▓-"] == [48, 50, 2]


def test_a_name_cannot_recolour_the_terminal(report):
    text = render(report, Screen(100, colour=False))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


def test_colour_is_for_terminals_only(report):
    colourless = render(report, Screen(100, colour=False))
    coloured = render(report, Screen(100, colour=True))
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).split() == colourless.split()


def test_every_section_says_which_question_it_answers(report):
    text = render(report, Screen(100))
    for section in report.sections:
        assert f"{section.name}   {section.question}" in text


def test_rows_left_out_are_counted_with_the_command_that_prints_them(report):
    text = render(report, Screen(100))
    assert "… and 7 more (tracekit table runs/base.json hot)" in text


def test_a_skipped_and_an_empty_analysis_differ(report):
    text = render(report, Screen(100))
    assert "Skipped: needs calls." in text
    assert "Nothing to show: this trace has none." in text


def test_nothing_alarms_when_nothing_is_wrong(calm):
    text = render(calm, Screen(100))
    assert "Nothing that needs attention." in text
    assert not re.search(r"warning|error|missing|critical|could not", text, re.IGNORECASE)


@pytest.mark.parametrize(
    ("text", "width", "cut"),
    [
        ("kernel", 6, "kernel"),
        ("abcdefghij", 5, "ab…ij"),
        ("abcdefghij", 4, "ab…j"),
        ("ab", 1, "…"),
    ],
)
def test_a_name_is_cut_in_the_middle(text, width, cut):
    assert shortened(text, width) == cut
