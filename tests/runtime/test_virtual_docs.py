"""What the page on the virtual device shows is run, and its report says what the page says."""

import re
import subprocess
import sys
from pathlib import Path

from instrumented_runtime.devices.virtual import Config
from tracekit.formats import read_trace, silent
from tracekit.pipeline import analyse

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "virtual.md").read_text()


def test_the_example_runs_and_its_report_is_the_device_s_own_account(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    run = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    span_ns, busy_ns, idle_ns = map(int, run.stdout.split())
    report = analyse(read_trace([tmp_path / "runs/virtual/virtual_1.db"], silent))
    (device,) = report.devices
    assert device.name == "virtual-gfx950"
    assert (device.span_ns, device.busy_ns) == (span_ns, busy_ns)
    assert sum(device.idle_ns_by_cause.values()) == idle_ns
    assert "rocpd.model" in {note.code for note in report.notes}
    (finding,) = report.findings
    assert finding.evidence["call"] == "hipEventSynchronize"
    # Two of three preparations have work behind them.
    assert finding.evidence["exposed_ns"] >= 2 * 600_000


def test_the_constants_on_the_page_are_those_of_the_code():
    shown = dict(re.findall(r"^\| `(\w+_ns)` \| ([\d.]+) \|", PAGE, re.MULTILINE))
    code = Config().as_options()["timing"]
    code.pop("calls_ns")
    assert {name: float(value) for name, value in shown.items()} == code
