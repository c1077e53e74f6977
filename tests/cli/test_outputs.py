"""What the commands write: whole, never over something, never half."""

import csv
import io
import json

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tracekit.cli import main, write_whole
from tracekit.errors import BadInput, OutputExists


def stdout_of(capsys, *arguments):
    """What a command that succeeds prints."""
    assert main([str(word) for word in arguments]) == 0
    return capsys.readouterr().out


def test_info_names_what_the_trace_holds(capsys, run_directory):
    text = stdout_of(capsys, "info", run_directory)
    assert "0: pid 42 rank 3" in text
    assert "command    serve.py" in text
    assert "0: MI300X, gfx942" in text
    assert "400 µs, first to last op" in text
    assert "notice: test-stream.unknown (3×): The stream of some ops is unknown." in text
    rows = dict(line.split() for line in text.split("Rows\n")[1].split("\n\n")[0].splitlines())
    assert (rows["ops"], rows["calls"], rows["waits"]) == ("4", "2", "0")


def test_a_table_is_the_same_as_csv_json_and_parquet(capsys, run_directory, trace, tmp_path):
    ops = trace.table("ops")
    comma = list(csv.DictReader(io.StringIO(stdout_of(capsys, "table", run_directory, "ops"))))
    rows = json.loads(stdout_of(capsys, "table", run_directory, "ops", "--as", "json"))
    assert main(["table", str(run_directory), "ops", "-o", str(tmp_path / "o.parquet")]) == 0
    assert [row["name"] for row in comma] == ["gemm", "norm", "barrier", "copy"]
    assert [int(row["start_ns"]) for row in comma] == ops["start_ns"].to_list()
    assert rows == ops.to_dicts()
    assert_frame_equal(pl.read_parquet(tmp_path / "o.parquet"), ops, categorical_as_str=True)


@pytest.mark.parametrize(("kind", "empty"), [("json", "[]\n"), ("csv", None)])
def test_an_empty_table_is_still_well_formed(capsys, run_directory, kind, empty):
    text = stdout_of(capsys, "table", run_directory, "waits", "--as", kind)
    assert text.startswith("wait_id,process_id,") if empty is None else text == empty


def test_a_list_in_a_csv_cell_is_words(capsys, run_directory):
    header, row = stdout_of(capsys, "table", run_directory, "processes").splitlines()
    assert header.split(",")[-1] == "collected"
    assert row.startswith("0,,42,3,serve.py")


def test_the_result_of_an_analysis_is_a_table_too(capsys, run_directory):
    rows = json.loads(stdout_of(capsys, "table", run_directory, "idle-gaps", "--as", "json"))
    prefixed = stdout_of(capsys, "table", run_directory, "analysis:idle-gaps", "--as", "json")
    assert sum(row["idle_ns"] for row in rows) == 150_000
    assert json.loads(prefixed) == rows


def test_the_suffix_of_the_output_chooses_the_report(run_directory, tmp_path, capsys):
    starts = {"a.txt": str(run_directory), "a.json": "{", "a.html": "<!doctype html>", "a.md": "# "}
    for name, start in starts.items():
        assert main(["report", str(run_directory), "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text().startswith(start)
        assert capsys.readouterr() == ("", f"Wrote {tmp_path / name}\n")


def test_the_json_report_follows_its_schema_and_adds_up(run_directory, capsys):
    report = json.loads(stdout_of(capsys, "report", run_directory, "--as", "json"))
    (device,) = report["summary"]["devices"]
    assert report["schema_version"] == "1.1"
    assert (device["device"], device["span_ns"], device["busy_ns"]) == (0, 400_000, 250_000)
    assert sum(device["idle_ns_by_cause"].values()) == 150_000
    assert report["notes"][0]["code"] == "test-stream.unknown"


def test_only_shows_what_was_asked_for_and_keeps_the_summary(run_directory, capsys):
    report = json.loads(
        stdout_of(capsys, "report", run_directory, "--only", "kernels", "--as", "json")
    )
    assert list(report["analyses"]) == ["kernels"]
    assert sum(report["summary"]["devices"][0]["idle_ns_by_cause"].values()) == 150_000


def test_a_window_is_stated_on_stderr(run_directory, capsys):
    assert main(["report", str(run_directory), "--window", "step", "--as", "json"]) == 0
    out, err = capsys.readouterr()
    window = "-0.020 ms to 0.250 ms, 2 ranges hold 'step': from the first to the last"
    assert err == f"Window: {window}\n"
    assert json.loads(out)["window"] == window
    assert json.loads(out)["summary"]["devices"][0]["span_ns"] == 250_000


@pytest.mark.parametrize(
    "arguments", [["report", "RUN", "-o", "OUT.html"], ["table", "RUN", "ops", "-o", "OUT.csv"]]
)
def test_an_existing_output_stays_unless_forced(run_directory, tmp_path, capsys, arguments):
    output = tmp_path / arguments[-1]
    output.write_text("mine")
    words = [str({"RUN": run_directory}.get(w, w)) for w in [*arguments[:-1], output]]
    assert main(words) == 2
    assert "exists already. Choose another path, or add --force" in capsys.readouterr().err
    assert output.read_text() == "mine"
    assert main([*words, "--force"]) == 0
    assert capsys.readouterr().err == f"Wrote {output}\n"
    assert output.read_text() != "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([output.name, "run"])


def test_an_output_is_refused_before_the_trace_is_read(tmp_path, capsys):
    output = tmp_path / "a.html"
    output.write_text("mine")
    assert main(["report", str(tmp_path / "no-such-trace"), "-o", str(output)]) == 2
    assert str(output) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "problem"),
    [("absent/a.html", "its folder does not exist"), ("folder", "is not a plain file")],
)
def test_an_output_that_cannot_be_is_refused(run_directory, tmp_path, capsys, place, problem):
    (tmp_path / "folder").mkdir()
    words = ["report", str(run_directory), "--as", "html", "--force", "-o", str(tmp_path / place)]
    assert main(words) == 2
    assert problem in capsys.readouterr().err


def test_a_report_never_replaces_what_it_is_made_from(run_directory, capsys):
    for inside in (run_directory, run_directory / "manifest.json"):
        assert (
            main(["report", str(run_directory), "-o", str(inside), "--as", "json", "--force"]) == 2
        )
        assert "the trace itself" in capsys.readouterr().err
    assert main(["info", str(run_directory)]) == 0


def test_a_device_file_is_never_replaced(run_directory, capsys):
    assert main(["report", str(run_directory), "--as", "md", "--force", "-o", "/dev/null"]) == 2
    assert "is not a plain file" in capsys.readouterr().err


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_write_leaves_nothing(tmp_path, stop):
    def write_half(path):
        path.write_text("half")
        raise stop

    with pytest.raises((KeyboardInterrupt, BadInput)):
        write_whole(tmp_path / "a.html", write_half, force=False)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_appears_meanwhile_is_kept(tmp_path):
    output = tmp_path / "a.html"

    def write_late(path):
        path.write_text("new")
        output.write_text("somebody else's")

    with pytest.raises(OutputExists):
        write_whole(output, write_late, force=False)
    assert output.read_text() == "somebody else's"
    assert list(tmp_path.iterdir()) == [output]


def test_a_link_keeps_pointing_where_it_points(tmp_path):
    target, link = tmp_path / "real.html", tmp_path / "link.html"
    target.write_text("old")
    link.symlink_to(target)
    write_whole(link, lambda path: path.write_text("new"), force=True)
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_convert_writes_a_run_that_reports_the_same(run_directory, tmp_path, capsys):
    copy = tmp_path / "copy"
    assert main(["convert", str(run_directory), "-o", str(copy)]) == 0
    assert capsys.readouterr().err == f"Wrote {copy}\n"
    before = json.loads(stdout_of(capsys, "report", run_directory, "--as", "json"))
    after = json.loads(stdout_of(capsys, "report", copy, "--as", "json"))
    assert before["analyses"] == after["analyses"]
    assert main(["convert", str(run_directory), "-o", str(copy)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["convert", str(run_directory), "-o", str(copy), "--force"]) == 0


def test_lists_name_what_reports_and_tables_accept(capsys, run_directory):
    assert "store" in stdout_of(capsys, "list", "formats")
    names = [line.split()[0] for line in stdout_of(capsys, "list", "analyses").splitlines()]
    assert "idle-gaps" in names
    report = json.loads(stdout_of(capsys, "report", run_directory, "--as", "json"))
    assert sorted(report["analyses"]) == names
