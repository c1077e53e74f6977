"""What the page on the engine shows is run, and its report says what the page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tracekit.formats import read_trace, silent
from tracekit.pipeline import analyse

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "engine.md").read_text()


@pytest.mark.parametrize(("policy", "is_blamed"), [("host-sync", True), ("forward-stream", False)])
def test_the_example_runs_and_its_report_blames_who_the_page_says(tmp_path, policy, is_blamed):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert 'policy="host-sync"' in example
    example = example.replace("host-sync", policy)
    run = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert 2.5 < float(run.stdout) < 4
    report = analyse(read_trace([tmp_path / "runs/engine/virtual_1.db"], silent))
    blamed = [
        finding.evidence["marker"]
        for finding in report.findings
        if finding.code == "host-blocked.publish-event"
    ]
    assert ("FutureMap.resolve_seq_lens_cpu" in blamed) == is_blamed
