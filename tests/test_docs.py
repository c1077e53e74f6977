"""The generated documents are what the program says today; the hand-written schema is complete."""

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize(
    ("name", "maker"), [("tables.md", "tables_document"), ("cli.md", "cli_document")]
)
def test_a_generated_document_is_up_to_date(name, maker):
    made = runpy.run_path(str(DOCS / "generate.py"))[maker]()
    assert (DOCS / name).read_text() == made, "run: python docs/generate.py"


def test_every_column_of_every_table_is_documented():
    from tracekit.analyses import analyses
    from tracekit.tables.catalog import TABLES

    text = (DOCS / "tables.md").read_text()
    tables = {**TABLES, **{name: analysis.table for name, analysis in analyses().items()}}
    for table in tables.values():
        for column in table.columns:
            assert column.meaning.strip(), f"{table.name}.{column.name} has no meaning"
            assert f"| `{column.name}` |" in text


def test_help_names_every_kind_of_report():
    from tracekit.cli import program
    from tracekit.reports import renderers

    (option,) = [o for o in program().commands["report"].params if o.name == "kind"]
    assert set(option.metavar.split("|")) == set(renderers())
