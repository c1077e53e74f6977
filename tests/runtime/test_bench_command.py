import json
import subprocess
import sys

import pytest


def run(*arguments, cwd):
    command = [sys.executable, "-m", "instrumented_runtime.bench", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_it_prints_a_table_with_its_degrees_of_freedom_and_writes_its_rows(tmp_path):
    done = run("--device", "virtual", "--table", "s1", "--json", "rows.json", cwd=tmp_path)
    assert done.returncode == 0
    assert "A model of the device, not a measurement of one." in done.stdout
    assert "degrees of freedom" in " ".join(done.stdout.split())
    assert "Wrote rows.json" in done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {row["kind"] for row in rows} == {"fitted", "predicted"}
    assert {"table", "row", "metric", "published", "ours", "kind"} <= rows[0].keys()


def test_it_does_not_overwrite(tmp_path):
    (tmp_path / "rows.json").write_text("mine")
    done = run("--table", "s1", "--json", "rows.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "rows.json: exists and is not overwritten; move it first" in done.stderr
    assert (tmp_path / "rows.json").read_text() == "mine"


@pytest.mark.parametrize("arguments", [["--table", "s9"], ["--device", "mi355x"]])
def test_what_it_does_not_know_is_refused(arguments, tmp_path):
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "invalid choice" in done.stderr


def test_a_folder_that_is_not_there_is_said_before_anything_is_run(tmp_path):
    done = run("--table", "s1", "--json", "no/rows.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "no: no folder that can be written to; make it first" in done.stderr
    assert "s1: batch" not in done.stderr


@pytest.mark.slow
def test_a_closed_pipe_does_not_cost_the_rows(tmp_path):
    command = f"{sys.executable} -m instrumented_runtime.bench --table s1 --json rows.json"
    shell = ["bash", "-c", f"set -o pipefail; {command} | true"]
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "rows.json").read_text())


def test_what_needs_torch_is_refused_without_it_before_anything_is_run(tmp_path):
    python = (
        "import importlib.util, runpy, sys; find = importlib.util.find_spec;"
        "importlib.util.find_spec = lambda name: None if name == 'torch' else find(name);"
        "sys.argv = ['bench']; runpy.run_module('instrumented_runtime.bench', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", python], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "s5 needs torch, which is not installed" in done.stderr
    assert "s1: batch" not in done.stderr
