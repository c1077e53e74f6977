"""From a trace to a report: windows, which analyses run, and numbers that add up."""

from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tracekit.analyses import Analysis
from tracekit.errors import BadInput
from tracekit.findings import Finding, FindingSeverity
from tracekit.pipeline import IDLE_GAPS, analyse
from tracekit.tables import Column, Table, enum_column, id_column
from tracekit.tables.identity import WINDOWS
from tracekit.tables.notes import Note, Severity
from tracekit.trace import CycleTimes, Trace
from tracekit.units import Unit
from tracekit.windows import device_spans, window_named, windows_frame

IDLE = Table(
    IDLE_GAPS,
    "idle time of one cause",
    (
        id_column("device_id", "device", "The device.", narrow=True),
        enum_column("cause", ("host-late", "edge"), "Why."),
        Column("idle_ns", pl.Int64(), "How long.", Unit.DURATION),
    ),
)
COUNTED = Table("counted", "a count", (Column("rows", pl.Int64(), "How many.", Unit.COUNT),))


@pytest.fixture
def trace(frame):
    """Two devices; the second begins late. A barrier and an op without a device are no work."""
    frames = {
        "ops": frame(
            "ops",
            """
            op_id  kind     device_id  start_ns  end_ns
            0      kernel   0          1000      1400
            1      kernel   0          1200      1500
            2      copy     0          1700      2000
            3      kernel   1          1800      1900
            4      barrier  1          1900      5000
            5      kernel   -          10        9000
            """,
        ),
        "ranges": frame(
            "ranges",
            """
            range_id  kind      text     start_ns  end_ns
            0         marker    step1    1000      1300
            1         marker    step12   1300      1600
            2         operator  step1    10        20
            3         operator  aten::mm 1100      1200
            4         marker    tick     1500      1500
            """,
        ).with_columns(text=pl.col("text").str.replace("step", "step ")),
        "devices": frame("devices", "device_id  name\n0  MI300X\n1  -"),
        "streams": frame("streams", "stream_id handle name\n0 0 -\n1 77 -\n2 5 side"),
    }
    return Trace.from_frames(frames, notes=[], sources=["t"], format_name="kineto")


def count_ops(ops):
    return pl.DataFrame({"rows": [ops.height]})


def idle_gaps(device_0_ns, device_1_ns):
    """An analysis that says what it is told, as a wrong one might."""
    rows = [(0, "host-late", device_0_ns), (0, "edge", 0), (1, "edge", device_1_ns)]
    frame = pl.DataFrame(rows, schema=["device_id", "cause", "idle_ns"], orient="row")
    return Analysis(IDLE_GAPS, "Why idle?", IDLE, lambda ops: frame)


@pytest.mark.parametrize(
    ("text", "start_ns", "end_ns"),
    [
        ("100:300", 1100, 1300),
        ("0.1us:.3us", 1100, 1300),
        (" 100ns : 300ns ", 1100, 1300),
        ("500:", 1500, 2000),
        (":500", 1000, 1500),
        (":-100", 1000, 1900),
        ("-300:-100", 1700, 1900),
        (":", 1000, 2000),
        ("step 1", 1000, 1300),
        ("step 12", 1300, 1600),
        ("step", 1000, 1600),
        ("ep 1", 1000, 1600),
        ("aten::mm", 1100, 1200),
        ("mm", 1100, 1200),
    ],
)
def test_a_window_is_what_the_words_say(trace, text, start_ns, end_ns):
    window = window_named(trace, text)
    assert (window.start_ns, window.end_ns) == (start_ns, end_ns)


def test_several_matches_are_stated(trace):
    assert window_named(trace, "step").found == "2 ranges hold 'step': from the first to the last"
    assert window_named(trace, "step 12").found == "the range 'step 12'"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("300:100", "is empty"),
        ("100:100", "is empty"),
        ("5ms:", "is empty"),
        ("0:99999999999999999999999", "is beyond any clock"),
        ("-99999999999999999999:", "is beyond any clock"),
        ("tick", "is an instant"),
        ("step 3", "no marker of this trace holds this text"),
        ("10mm:20ms", "no marker of this trace holds this text"),
        ("10ms", "no marker of this trace holds this text"),
        ("", "no marker of this trace holds this text"),
        ("(", "no marker of this trace holds this text"),
    ],
)
def test_a_window_that_cannot_be_is_refused_with_the_forms_there_are(trace, text, problem):
    with pytest.raises(BadInput, match=r"START:END \(10ms:20ms") as refused:
        window_named(trace, text)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (None, [(0, 1000, 2000), (1, 1800, 1900), (None, None, None)]),
        ("-150:", [(0, 1850, 2000), (1, 1850, 1900), (None, 1850, 2000)]),
        (":100", [(0, 1000, 1100), (None, 1000, 1100)]),
    ],
)
def test_windows_are_each_devices_own_cut_to_the_users(trace, text, rows):
    window = None if text is None else window_named(trace, text)
    expected = pl.DataFrame(rows, schema=WINDOWS.schema, orient="row")
    assert_frame_equal(windows_frame(device_spans(trace), window), expected)


def test_a_window_without_work_is_refused(trace):
    with pytest.raises(BadInput, match="no device did anything in it"):
        windows_frame(device_spans(trace), window_named(trace, "2us:3us"))


def test_a_trace_without_work_is_refused(trace):
    empty = Trace.from_frames({}, notes=[], sources=["cpu.json"], format_name="kineto")
    with pytest.raises(BadInput, match=r"cpu\.json: holds no GPU work.*Record again"):
        analyse(empty, known={})


def test_busy_and_idle_add_up_to_the_span(trace):
    report = analyse(trace, known={IDLE_GAPS: idle_gaps(200, 0)})
    first, second = report.devices
    assert (first.name, first.span_ns, first.busy_ns) == ("MI300X", 1000, 800)
    assert first.idle_ns_by_cause == {"host-late": 200, "edge": 0}
    assert (second.name, second.span_ns, second.busy_ns) == ("", 100, 100)


def test_a_ledger_that_does_not_add_up_is_a_defect_and_stops_the_report(trace):
    with pytest.raises(AssertionError, match="device 0: span 1000 ns, parts 999 ns"):
        analyse(trace, known={IDLE_GAPS: idle_gaps(199, 0)})


def test_without_the_ledger_idle_time_has_no_known_cause(trace):
    assert analyse(trace, known={}).devices[0].idle_ns_by_cause == {"unknown": 200}


def test_an_analysis_without_its_tables_is_skipped_and_says_what_it_needs(trace):
    known = {"calls": Analysis("calls", "Which?", COUNTED, count_ops, ("calls", "ops", "waits"))}
    (section,) = analyse(trace, known=known).sections
    assert section.skipped == "needs calls, waits"
    assert section.frame.schema == COUNTED.schema


def test_only_limits_sections_findings_and_caveats_but_not_the_summary(trace):
    def warn(result):
        return [Finding("a.b", FindingSeverity.INFO, f"{result.height}", {}, "")]

    def doubt(windows):
        heard.append(windows.height)
        return [Note("c.d", Severity.INFO, f"note {len(heard)}")]

    heard = []

    known = {
        name: Analysis(name, "?", COUNTED, count_ops, findings=warn, caveats=doubt)
        for name in ("first", "second")
    }
    ledger = replace(idle_gaps(200, 0), findings=warn, caveats=doubt)
    report = analyse(trace, only=["second"], known={**known, IDLE_GAPS: ledger})
    assert [section.name for section in report.sections] == ["second"]
    assert heard[0] == 3
    assert [note.message for note in report.notes if note.code == "c.d"] == ["note 1"]
    assert len(report.findings) == 1
    assert report.devices[0].idle_ns_by_cause["host-late"] == 200


def test_the_worst_finding_comes_first(trace):
    def findings(result):
        order = (FindingSeverity.INFO, FindingSeverity.CRITICAL, FindingSeverity.WARNING)
        return [Finding("a.b", severity, "m", {}, "") for severity in order]

    known = {"counted": Analysis("counted", "?", COUNTED, count_ops, findings=findings)}
    severities = [finding.severity for finding in analyse(trace, known=known).findings]
    assert severities == ["critical", "warning", "info"]


def test_ops_without_a_device_are_counted_in_a_note(trace):
    (note,) = analyse(trace, known={}).notes
    assert (note.code, note.count) == ("trace-ops.no-device", 1)


def test_an_unknown_analysis_is_refused_with_the_one_that_was_meant(trace):
    with pytest.raises(BadInput, match=r"countd: no such analysis\. Did you mean counted"):
        analyse(
            trace,
            only=["countd"],
            known={"counted": Analysis("counted", "?", COUNTED, count_ops)},
        )


def test_names_stand_beside_ids_where_they_say_more(trace):
    report = analyse(trace, known={})
    assert report.labels["stream"] == {1: "#77", 2: "side"}
    assert report.labels["device"] == {0: "MI300X"}


def test_progress_names_each_analysis(trace):
    heard = []
    known = {"counted": Analysis("counted", "?", COUNTED, count_ops)}
    analyse(trace, known=known, progress=lambda *said: heard.append(said))
    assert heard == [(0, 1, "counted"), (1, 1, "done")]


def marked_analysis(name, compute, *columns):
    table = Table(name, "a figure", (Column("rows", pl.Int64(), "How many.", Unit.COUNT), *columns))
    return Analysis(name, "?", table, compute)


def of_calls(calls):
    return pl.DataFrame({"rows": [calls.height]})


def of_both(ops, calls):
    return pl.DataFrame({"rows": [ops.height + calls.height]})


@pytest.fixture
def doubtful(trace, frame):
    """The trace with calls: op 0 of device 0 was queued before the first, the others have theirs.

    One row of the ops names no device.
    """
    frames = dict(trace.frames)
    frames["calls"] = frame("calls", "call_id process_id correlation_id\n 0 0 5")
    calls = pl.Series([None, 0, 0, 0, None, 0], dtype=pl.Int64)
    numbers = pl.Series([2, 5, 5, 5, 5, 5], dtype=pl.Int64)
    order = frames["ops"]["op_id"]
    frames["ops"] = frames["ops"].with_columns(
        process_id=pl.lit(0, pl.Int32),
        call_id=calls.gather(order),
        correlation_id=numbers.gather(order),
    )
    frames["processes"] = frame("processes", "process_id\n 0")
    frames["ranges"] = frames["ranges"].with_columns(process_id=pl.lit(0, pl.Int32))
    return Trace.from_frames(frames, notes=[], sources=["t"], format_name="kineto")


def codes(marks):
    return [mark.code.removeprefix("trust-") for mark in marks]


def test_a_mark_touches_an_analysis_by_the_tables_it_reads_or_the_units_it_gives(doubtful):
    doubtful.cycle_times = CycleTimes(3.0, 2.0)
    lasting = Column("total_ns", pl.Int64(), "How long.", Unit.DURATION)
    known = {
        "of-ops": marked_analysis("of-ops", count_ops),
        "of-calls": marked_analysis("of-calls", of_calls),
        "of-both": marked_analysis("of-both", of_both),
        "lasting": marked_analysis("lasting", of_calls, lasting),
    }
    sections = {section.name: section for section in analyse(doubtful, known=known).sections}
    assert {name: codes(section.trust) for name, section in sections.items()} == {
        "of-ops": ["ops.no-device"],
        "of-calls": [],
        "of-both": ["ops.no-device", "window.ops-queued-before"],
        "lasting": ["cycles.slowed-by-tracing"],
    }


def test_a_mark_touches_the_devices_it_is_about_where_the_part_has_time(doubtful):
    ledger = {IDLE_GAPS: idle_gaps(200, 0)}
    report = analyse(doubtful, known=ledger)
    first, second = report.devices
    # Device 0 is idle for `host-late` only: no figure of it is touched by the edge of the window.
    assert codes(first.trust) == codes(second.trust) == ["ops.no-device"]
    assert first.busy_is_at_least
    assert [mark.code for mark in first.marks_of("host-late")] == ["trust-ops.no-device"]
    assert first.marks_of("edge") == []
    # Nobody need read twice that ops are without a device; programs get the note still.
    assert [note.code for note in report.notes] == ["trace-ops.no-device"]
    assert report.notes_left() == []


def test_a_skipped_analysis_has_no_figure_to_mark(doubtful):
    waiting = replace(marked_analysis("of-ops", count_ops), needs=("ops", "waits"))
    (section,) = analyse(doubtful, known={"of-ops": waiting}).sections
    assert section.skipped
    assert section.trust == ()


def test_only_marks_of_what_is_shown_are_in_the_report(doubtful):
    known = {
        "of-calls": marked_analysis("of-calls", of_calls),
        "of-both": marked_analysis("of-both", of_both),
    }
    assert codes(analyse(doubtful, only=["of-calls"], known=known).trust) == ["ops.no-device"]
    assert codes(analyse(doubtful, known=known).trust) == [
        "ops.no-device",
        "window.ops-queued-before",
    ]
