"""Runs a program with hooks, as capture would run a server: by its environment alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOOKS = ROOT / "instrumented_runtime" / "hooks"
FOREIGN = ROOT / ".venv" / "foreign"


class Ran:
    """What a program left behind."""

    def __init__(self, process, folder):
        self.output, self.log, self.status = process.stdout, process.stderr, process.returncode
        self.folder = folder

    @property
    def reports(self):
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"))]

    @property
    def report(self):
        (report,) = self.reports
        return report

    @property
    def traces(self):
        return sorted(self.folder.glob("*.trace.json.gz"))


def run_hooked(code, folder, *, hooks="", flags=(), paths=(), **variables):
    """Run code in a new process whose environment asks for hooks; return what it left."""
    (folder / "window").write_bytes(b"\0")
    program = folder / "program.py"
    program.write_text(code)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("TRACEKIT")
    }
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, (HOOKS / "path", *paths, ROOT / "tests" / "hooks"))),
        "TRACEKIT_HOOKS": hooks,
        "TRACEKIT_HOOKS_DIR": str(folder),
        "TRACEKIT_TRACE_DIR": str(folder),
        **variables,
    }
    process = subprocess.run(
        [sys.executable, *flags, str(program)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Ran(process, folder)
