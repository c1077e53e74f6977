"""The report for programs and for an issue."""

import json
import re
from pathlib import Path

import pytest

from tracekit.reports import Screen, renderers
from tracekit.reports.md import code
from tracekit.trust import checks

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "report.md"
# Objects whose keys are data.
OPEN = {"idle_ns_by_cause", "evidence", "labels", "numbers", "rows[]"}


def paths_of(value, path=""):
    """Every key path of a JSON document, written as docs/report.md writes them."""
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return {p for item in value if isinstance(item, dict) for p in paths_of(item, f"{path}[]")}
    own = {path} if path and path != "summary" else set()
    if not isinstance(value, dict) or path.rpartition(".")[2] in OPEN:
        return own
    names = {key: "<name>" if path == "analyses" else key for key in value}
    inner = {p for k, v in value.items() for p in paths_of(v, f"{path}.{names[k]}".lstrip("."))}
    return (own | inner) - {"analyses"}


def test_every_key_is_documented_and_every_documented_key_exists(marked):
    document = json.loads(renderers()["json"].render(marked, Screen()))
    documented = set(re.findall(r"^\| `((?!trust-)[^`]+)` \|", SCHEMA.read_text(), re.MULTILINE))
    assert paths_of(document) == documented


def test_the_documented_version_is_the_written_one(report):
    document = json.loads(renderers()["json"].render(report, Screen()))
    assert f"- **{document['schema_version']}**" in SCHEMA.read_text()


def test_every_code_of_a_mark_is_documented():
    documented = set(re.findall(r"^\| `(trust-[^`]+)` \|", SCHEMA.read_text(), re.MULTILINE))
    assert documented == set(checks())


def test_marks_come_with_their_numbers_and_each_figure_names_its_own(marked):
    document = json.loads(renderers()["json"].render(marked, Screen()))
    first, second, third = document["trust"]
    assert (first["mark"], second["mark"], third["mark"]) == (1, 2, 3)
    assert first["numbers"] == {"launches_without_ops": 3, "possible_busy_ns": 400_000}
    assert (first["device"], second["device"]) == (0, None)
    assert first["parts"] == ["busy", "idle"]
    assert (first["tables"], third["tables"]) == ([["ops"]], [["copies"]])
    devices = document["summary"]["devices"]
    assert [device["busy_is_at_least"] for device in devices] == [True, False]
    assert [mark["mark"] for mark in devices[0]["trust"]] == [1, 2]
    assert devices[1]["trust"] == []
    assert document["analyses"]["hot"]["trust"] == [
        {"mark": 1, "code": "trust-graphs.launches-without-ops"},
        {"mark": 3, "code": "trust-copies.without-op"},
    ]
    # Figures stay as they were measured, and programs get every note.
    assert devices[0]["busy_ns"] == 481_000
    assert len(document["notes"]) == 2


def test_rows_come_back_whole(report):
    document = json.loads(renderers()["json"].render(report, Screen()))
    hot = document["analyses"]["hot"]
    assert hot["rows"] == report.sections[0].frame.to_dicts()
    assert [column["name"] for column in hot["columns"]] == report.sections[0].frame.columns
    assert document["analyses"]["calls"]["skipped"] == "needs calls"


def test_what_json_cannot_say_is_null(report):
    from dataclasses import replace

    import polars as pl

    section = report.sections[0]
    frame = section.frame.with_columns(busy_share=pl.lit(float("nan")))
    text = renderers()["json"].render(
        replace(report, sections=[replace(section, frame=frame)]), Screen()
    )
    assert (
        json.loads(text, parse_constant=pytest.fail)["analyses"]["hot"]["rows"][0]["busy_share"]
        is None
    )


def cells_of(row):
    """Cells of a markdown table row: a pipe divides unless a backslash is before it."""
    return re.split(r"(?<!\\)\|", row)[1:-1]


def test_every_markdown_row_has_as_many_cells_as_its_head(report):
    text = renderers()["md"].render(report, Screen())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    widths = [len(cells_of(row)) for row in rows]
    heads = [
        i for i, row in enumerate(rows) if i + 1 < len(rows) and rows[i + 1].startswith("|---")
    ]
    assert len(heads) == 2
    for start, end in zip(heads, [*heads[1:], None], strict=True):
        assert len(set(widths[start:end])) == 1


@pytest.mark.parametrize(
    ("name", "span"),
    [
        ("kernel<4, int>", "`kernel<4, int>`"),
        ("a|b", r"`a\|b`"),
        ("a `b` c", "`` a `b` c ``"),
        ("two\nlines", "`two lines`"),
        ("red\x1b[31m\x07\u202e", "`red\ufffd[31m\ufffd\ufffd`"),
    ],
)
def test_a_name_stays_what_it_is_in_markdown(name, span):
    assert code(name) == span


def test_markdown_shows_the_summary_and_advice(report):
    text = renderers()["md"].render(report, Screen())
    assert "| 0 · MI300X | 1 ms | 48.1 % | 50.0 % | 1.9 % | <0.1 % |" in text.replace(r"\<", "<")
    assert "→ Queue the next step before waiting." in text
    assert "Skipped: needs calls." in text


def test_markdown_marks_figures_and_tells_each_mark_once(marked):
    text = renderers()["md"].render(marked, Screen())
    figures = "| ≥ 48.1 % !1 | 50.0 % !1 | 1.9 % !1 | <0.1 % !1 !2 |"
    assert f"| 0 · MI300X | 1 ms {figures}" in text.replace(r"\<", "<")
    assert "| 1 · MI300X | 1 ms | 100.0 % | 0.0 % | 0.0 % | 0.0 % |" in text
    assert "- !1 device 0: 3 of 4 graph launches have no recorded op\n" in text
    assert text.count("3 of 4 graph launches") == 1
    assert text.count("2 copies have no device op") == 1
    assert "Less sure: !1 graph launches without their ops, !3 copies" in text
    assert "kineto-events.unpaired" not in text


def test_html_marks_figures_and_tells_each_mark_once(marked):
    text = renderers()["html"].render(marked, Screen())
    assert "<b>≥ 48.1 %</b><sup>!1</sup>" in text
    assert "<b>&lt;0.1 %</b><sup>!1 !2</sup>" in text
    assert "<b>100.0 %</b> <small>" in text
    assert text.count("device 0: 3 of 4 graph launches have no recorded op") == 1
    assert text.count("2 copies have no device op") == 1
    assert "kineto-events.unpaired" not in text
