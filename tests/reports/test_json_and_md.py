"""The report for programs and for an issue."""

import json
import re
from pathlib import Path

import pytest

from tracekit.reports import Screen, renderers
from tracekit.reports.md import code

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "report.md"
# Objects whose keys are data.
OPEN = {"idle_ns_by_cause", "evidence", "labels", "rows[]"}


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


def test_every_key_is_documented_and_every_documented_key_exists(report):
    document = json.loads(renderers()["json"].render(report, Screen()))
    documented = set(re.findall(r"^\| `([^`]+)` \|", SCHEMA.read_text(), re.MULTILINE))
    assert paths_of(document) == documented


def test_the_documented_version_is_the_written_one(report):
    document = json.loads(renderers()["json"].render(report, Screen()))
    assert f"- **{document['schema_version']}**" in SCHEMA.read_text()


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
