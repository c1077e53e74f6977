"""The report for a terminal."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tracekit.reports import Screen, renderers, shortened
from tracekit.tables.notes import Note, Severity

GOLDEN = Path(__file__).parent / "golden" / "report.txt"
render = renderers()["text"].render


def test_the_report_reads_like_the_golden_file(report):
    """After a wanted change: TRACEKIT_GOLDEN=write pytest tests/reports/test_text.py, then read."""
    text = render(report, Screen(width=100))
    if os.environ.get("TRACEKIT_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_marks_stand_beside_what_they_touch_and_are_told_where_they_stand_first(marked):
    lines = render(marked, Screen(width=100)).splitlines()
    at = lines.index
    assert lines[4].startswith(
        "2 GPUs were busy at least 48.1 % to 100.0 % !1 of 1 ms. Of the idle time, 96.3 % !1 is host-blocked"
    )
    (device,) = (i for i, line in enumerate(lines) if line.startswith("device 0"))
    assert lines[device : device + 2] == [
        "device 0 · MI300X, 1 ms: busy ≥ 48.1 % !1 | idle !1: host-blocked 50.0 %, dispatch 1.9 %, unknown",
        "  <0.1 % !2",
    ]
    # The bar, then the legend.
    assert lines[device + 3 : device + 5] == [
        "  !1 3 of 4 graph launches have no recorded op",
        "  !2 12 of 48 ops were queued before recording",
    ]
    assert "device 1 · MI300X, 1 ms: busy 100.0 % | never idle" in lines
    (hot,) = (i for i, line in enumerate(lines) if line.startswith("hot "))
    assert lines[hot + 1 : hot + 3] == [
        "Less sure: !1 graph launches without their ops, !3 copies not recorded on the device.",
        "  !3 2 copies have no device op",
    ]
    assert lines[at("steps   How long is a step?") + 1 :][:2] == [
        "Less sure: !3 copies not recorded on the device.",
        "Nothing to show: this trace has none.",
    ]


def test_a_note_that_a_mark_says_is_not_printed_again(report, marked):
    assert "kineto-events.unpaired" in render(report, Screen(100))
    assert "kineto-events.unpaired" not in render(marked, Screen(100))
    assert "kineto.flags-unknown" in render(marked, Screen(100))


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(marked, width):
    lines = render(marked, Screen(width=width)).splitlines()
    # Commands to copy and a table's narrowest columns may not be cut.
    too_wide = [line for line in lines if len(line) > width]
    assert too_wide == []


def test_what_is_true_of_several_files_is_printed_once_with_the_sum(report):
    ranks = [
        Note("kineto.events-not-used", Severity.INFO, "Left out.", 3, f"{n}.json") for n in "ab"
    ]
    text = render(replace(report, notes=ranks), Screen(100))
    assert text.count("kineto.events-not-used") == 1
    assert "kineto.events-not-used (6×): Left out." in text


def test_a_narrow_terminal_keeps_the_columns_that_answer(report):
    hot, *_ = report.sections
    answering = replace(hot, table=replace(hot.table, answers=("stream_id", "first_ns")))
    text = render(replace(report, sections=[answering]), Screen(width=60))
    (left_out,) = re.findall(r"Columns that do not fit here: (.*)\.", text)
    assert not {"stream", "first"} & set(left_out.split(", "))


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


def test_colour_is_for_terminals_only(marked):
    colourless = render(marked, Screen(100, colour=False))
    coloured = render(marked, Screen(100, colour=True))
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
    assert not re.search(r"!\d|≥|less sure", text, re.IGNORECASE)


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
