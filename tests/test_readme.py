"""What the README shows is what the commands print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```console\n\$ (.+)\n((?:.*\n)*?)```", (ROOT / "README.md").read_text())


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_an_example_prints_the_lines_it_shows_in_their_order(command, shown):
    program = Path(sys.executable).with_name("tracekit")
    arguments = [program, *command.split()[1:]]
    wide = os.environ | {"COLUMNS": "100"}
    run = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, check=True, env=wide)
    remaining = iter(line.rstrip() for line in run.stdout.splitlines())
    for line in shown.splitlines():
        assert line == "…" or line.rstrip() in remaining


def test_the_readme_has_examples_and_names_only_files_that_are_there():
    text = (ROOT / "README.md").read_text()
    assert len(BLOCKS) >= 2
    for target in re.findall(r"\]\(([\w./-]+)\)", text) + re.findall(r"samples/[\w./]+", text):
        assert (ROOT / target).exists(), target
