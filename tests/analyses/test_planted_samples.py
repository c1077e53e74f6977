"""Loops with planted causes, recorded on a real GPU: the ledger blames what was planted.

`samples/record_planted.py` recorded the traces and wrote beside them what it had planted, what
torch's stream sanitizer said of the copies, and in how many steps a reader saw the wrong bytes.
"""

import functools
import gzip
import json
from pathlib import Path

import polars as pl
import pytest

from tracekit.formats import read_trace
from tracekit.pipeline import analyse
from tracekit.windows import Window, window_named

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
TRUTH = json.loads((SAMPLES / "planted_truth.json").read_text())
STEPS = TRUTH["steps"]
IDLE, COPIES = TRUTH["idle"], TRUTH["copies"]
PHASES = IDLE["phases"]
HOST_WORK_NS = 500_000


@functools.cache
def trace(name):
    return read_trace([SAMPLES / name])


def ledger(name, phase):
    """Return the summary of the device and the ledger, both of one phase."""
    window = window_named(trace(name), f"phase {phase}")
    report = analyse(trace(name), only=["idle-gaps"], window=window)
    (device,), (section,) = report.devices, report.sections
    return device, section.frame


def planted_share(name, phase):
    """Return the share of a phase's idle time that has its planted cause and owner."""
    _, frame = ledger(name, phase)
    same = [
        pl.col(column).cast(pl.String).eq_missing(pl.lit(PHASES[phase][column], pl.String))
        for column in ("cause", "owner", "owner_caller")
    ]
    return frame.filter(same)["idle_ns"].sum() / frame["idle_ns"].sum()


@pytest.mark.parametrize(
    ("phase", "name"),
    [
        ("host-sync", IDLE["trace"]),
        ("item", IDLE["trace"]),
        ("host-work", IDLE["trace"]),
        ("tiny-kernels", IDLE["trace"]),
        ("starvation", IDLE["trace"]),
        ("stream-wait", IDLE["trace_with_event_records"]),
    ],
)
def test_a_planted_cause_carries_the_idle_time_of_its_phase(phase, name):
    assert planted_share(name, phase) >= IDLE["least_share"]


def test_a_wait_whose_record_only_markers_name_carries_the_idle_time_of_its_phase():
    assert planted_share(IDLE["trace"], "stream-wait") >= IDLE["least_share"]


def test_every_phase_of_the_truth_is_looked_at_and_has_a_cause_but_for_the_control():
    assert [phase for phase, truth in PHASES.items() if truth["cause"] is None] == ["saturation"]
    texts = trace(IDLE["trace"]).table("ranges")["text"]
    named = set(texts.filter(texts.str.starts_with("phase ").fill_null(value=False)))
    assert named == {f"phase {phase}" for phase in PHASES}


def test_a_saturated_device_hardly_idles_and_no_host_is_blamed():
    device, frame = ledger(IDLE["trace"], "saturation")
    assert 0 < frame["idle_ns"].sum() <= IDLE["most_idle_share"] * device.span_ns
    assert frame["cause"].cast(pl.String).to_list() == ["launch-latency"]


@pytest.mark.parametrize("phase", ["host-sync", "item"])
def test_what_a_blocked_host_then_prepares_is_exposed_in_full(phase):
    _, frame = ledger(IDLE["trace"], phase)
    truth = PHASES[phase]
    exposed = frame.filter(part="exposed", range=truth["range"], owner=truth["owner"])
    assert exposed["gaps"].to_list() == [STEPS]
    # The host works for 500 µs by its own clock; the profiler and the marker add a little.
    assert 1.0 <= exposed["idle_ns"].sum() / (STEPS * HOST_WORK_NS) <= 1.15


def test_markers_and_cupti_agree_on_the_record_that_a_stream_waits_for():
    both = trace(IDLE["trace_with_event_records"])
    by_cupti = dict(both.table("waits").select("wait_call_id", "record_call_id").iter_rows())
    last_record, by_markers = {}, {}
    marks = both.table("marks").sort("time_ns")
    for statement, event, call in marks.select("statement", "event_key", "call_id").iter_rows():
        if statement == "record":
            last_record[event] = call
        elif statement == "wait":
            by_markers[call] = last_record[event]
    assert len(by_cupti) > STEPS
    assert by_markers == by_cupti


def work_within(phase):
    """Return `[(start, end), …]` in µs of copies and of kernels within a phase, from the file."""
    events = json.loads(gzip.decompress((SAMPLES / COPIES["trace"]).read_bytes()))["traceEvents"]
    spans = [(e.get("cat"), e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if "dur" in e]
    ((start, end),) = [
        (a, b) for cat, name, a, b in spans if (cat, name) == ("user_annotation", f"phase {phase}")
    ]
    copies, kernels = (
        [(a, b) for cat, _, a, b in spans if cat == wanted and start <= a and b <= end]
        for wanted in ("gpu_memcpy", "kernel")
    )
    return copies, kernels


@pytest.mark.parametrize("program", COPIES["programs"])
def test_copies_run_beside_their_readers_where_the_truth_says_so(program):
    copies, readers = work_within(program)
    beside = [any(a < d and c < b for c, d in readers) for a, b in copies]
    assert beside == [COPIES["programs"][program]["runs_beside_reader"]] * STEPS
    assert len(readers) == STEPS


@pytest.mark.parametrize("program", COPIES["programs"])
def test_the_sanitizer_and_what_readers_saw_agree_with_what_was_planted(program):
    truth = COPIES["programs"][program]
    assert truth["sanitizer_steps_with_race"] == (STEPS if truth["order"] is None else 0)
    assert truth["steps_that_read_another_table"] == (STEPS if truth["runs_beside_reader"] else 0)


@pytest.mark.parametrize("program", COPIES["programs"])
def test_copies_are_ordered_as_the_programs_were_written(program):
    truth = COPIES["programs"][program]
    named = trace(COPIES["trace"])
    # The name of one phase is within that of another, so it is given by its times.
    (phase,) = named.table("ranges").filter(text=f"phase {program}").rows(named=True)
    window = Window(phase["start_ns"], phase["end_ns"])
    report = analyse(named, only=["unordered-copies"], window=window)
    (section,) = report.sections
    bad = "unordered" if truth["runs_beside_reader"] else "accident"
    expected = {
        "order": truth["order"] or bad,
        "certainty": None if truth["order"] else "certain",
        "conflict": "overwrites-read",
        "buffer": "table",
        "copies": STEPS,
        "together": STEPS * truth["runs_beside_reader"],
        "steps": STEPS,
    }
    assert section.frame.select(*expected).to_dicts() == [expected]
    severity = "critical" if truth["runs_beside_reader"] else "warning"
    found = [(finding.severity.value, finding.evidence["copies"]) for finding in report.findings]
    assert found == ([] if truth["order"] else [(severity, truth["sanitizer_steps_with_race"])])


@pytest.mark.parametrize("name", sorted(SAMPLES.glob("planted_*.json.gz")), ids=lambda p: p.stem)
def test_a_sample_is_small_and_names_no_folder_of_the_machine(name):
    assert name.stat().st_size < 150_000
    text = gzip.decompress(name.read_bytes()).decode()
    assert not [word for word in ("/root", "/home", "/work", "/tmp", "/opt", ".py") if word in text]
