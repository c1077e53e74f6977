"""A run directory answers from what it stored, but only while the code that made it is this code."""

import json
import re
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import tracekit
from tracekit.analyses import code_of_results
from tracekit.formats import read_trace
from tracekit.formats.store import write_run
from tracekit.pipeline import analyse, with_results
from tracekit.windows import Window

SAMPLE = Path(__file__).resolve().parents[1] / "samples" / "decode_item.json.gz"


@pytest.fixture
def run(tmp_path):
    write_run(with_results(read_trace([SAMPLE])), tmp_path / "run", force=False)
    return tmp_path / "run"


def swap_stored_kernels(run):
    """Leave a mark in a stored result, to see whether a report used it."""
    path = run / "results" / "kernels.parquet"
    pl.read_parquet(path).head(1).write_parquet(path)


def kernels(run, **options):
    report = analyse(read_trace([run]), only=["kernels"], **options)
    return report.sections[0].frame.height


def test_a_stored_report_is_the_report_of_the_original(run):
    original, stored = analyse(read_trace([SAMPLE])), analyse(read_trace([run]))
    assert stored.devices == original.devices
    assert stored.findings == original.findings
    assert stored.notes == original.notes
    for ours, theirs in zip(stored.sections, original.sections, strict=True):
        assert (ours.name, ours.skipped) == (theirs.name, theirs.skipped)
        assert_frame_equal(ours.frame, theirs.frame)


def test_results_are_read_and_not_made_again(run):
    all_kernels = kernels(run)
    swap_stored_kernels(run)
    assert kernels(run) == 1 < all_kernels


def test_results_of_other_code_or_another_window_are_made_again(run):
    all_kernels = kernels(run)
    swap_stored_kernels(run)
    assert kernels(run, window=Window(0, 1 << 62)) == all_kernels
    manifest = run / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"results_made_by": "other"}))
    assert kernels(run) == all_kernels


@pytest.mark.parametrize("damage", ["cut", "other"])
def test_a_damaged_result_is_made_again(run, damage):
    all_kernels = kernels(run)
    path = run / "results" / "kernels.parquet"
    other = (run / "results" / "calls.parquet").read_bytes()
    path.write_bytes(path.read_bytes()[:50] if damage == "cut" else other)
    assert kernels(run) == all_kernels


def test_a_missing_result_is_made_again(run):
    all_kernels = kernels(run)
    (run / "results" / "calls.parquet").unlink()
    swap_stored_kernels(run)
    assert kernels(run) == all_kernels


def test_results_are_known_by_all_the_code_that_makes_them():
    # Findings are made anew from stored results; the others find, refuse, or hold tables.
    makes_nothing = {"findings", "registry", "errors", "trace"}
    root = Path(tracekit.__file__).parent
    sources = {path for path in code_of_results() if path.suffix == ".py"}
    used = {
        module
        for source in sources
        for module in re.findall(r"^from tracekit\.(\w+)", source.read_text(), re.MULTILINE)
    }
    covered = {source.relative_to(root).parts[0].removesuffix(".py") for source in sources}
    assert used - covered <= makes_nothing
    assert "windows" in covered
