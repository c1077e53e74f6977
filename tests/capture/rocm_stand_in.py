"""Installs the stand-in for ROCm's profiler into a folder: `bin/rocprofv3` and the marker library."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from watching import soon

from tracekit.capture.processes import Tree
from tracekit.capture.profilers import Asked, profilers

HERE = Path(__file__).resolve().parent

# Without a tool its functions do nothing, as the real library's.
ROCTX = r"""
typedef void (*with_text)(const char *);
typedef void (*plain)(void);
static with_text mark, push;
static plain pop, resume, pause_;
void fake_set_tool(with_text m, with_text p, plain o, plain r, plain s) {
    mark = m, push = p, pop = o, resume = r, pause_ = s;
}
void roctxMarkA(const char *text) { if (mark) mark(text); }
int roctxRangePushA(const char *text) { if (push) push(text); return 0; }
int roctxRangePop(void) { if (pop) pop(); return 0; }
int roctxProfilerResume(unsigned long thread) { if (!thread && resume) resume(); return 0; }
int roctxProfilerPause(unsigned long thread) { if (!thread && pause_) pause_(); return 0; }
"""


def install(root):
    """Return the root of a ROCm with rocprofv3 in it; without a compiler it has no markers."""
    for folder in ("bin", "lib"):
        (root / folder).mkdir(parents=True)
    program = root / "bin" / "rocprofv3"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_rocprofv3.py"} "$@"\n')
    program.chmod(0o755)
    if compiler := shutil.which("gcc"):
        library = root / "lib" / "librocprofiler-sdk-roctx.so.1"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", library],
            input=ROCTX,
            text=True,
            check=True,
        )
    return root


def environment_with(root, **more):
    """Return an environment in which the stand-ins are found."""
    return {
        "PATH": f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(HERE / "fake_rocm"),
        "FAKE_ROCM_LIB": str(root / "lib"),
        "ROCM_PATH": str(root),
        "FAKE_ROCPROFV3_FINALIZE_S": "0.1",
        **more,
    }


def asked(root, tmp_path, command, *, window=None, has_window=True, more=None, **options):
    """Return what a capture asks of rocprofv3, to run a command."""
    raw = tmp_path / "raw"
    raw.mkdir(exist_ok=True)
    return Asked(
        command=tuple(map(str, command)),
        environment=environment_with(root, **(more or {})),
        raw=raw,
        has_window=has_window,
        options=options,
        window=window,
    )


def started(what):
    """Return rocprofv3's session."""
    return profilers()["rocprofv3"].start(what)


class Launched(Tree):
    """The tree of a command, which answers no HTTP."""

    base_url = None

    def end(self):
        """Kill it, wait until it can be told how it ended, and close its output.

        A killed process with many threads is there for a while after it no longer runs.
        """
        self.kill()
        soon(lambda: self.exit_code() is not None)
        self.output.close()


@contextlib.contextmanager
def running(session, what, folder, **injected):
    """Run the session's command; nothing of it is left afterwards."""
    environment = what.environment | injected | session.environment
    tree = Launched(session.command, environment, gpu_devices=(str(folder / "kfd"),))
    try:
        yield tree
    finally:
        tree.end()


def toy(folder, *, steps=0, method="spawn", workers=2):
    """Return the command of the toy server."""
    folder.mkdir(exist_ok=True)
    return [sys.executable, HERE / "toy_gpu_server.py", folder, steps, method, workers]


def steps_done(folder):
    """Return by worker how many steps it says it has done."""
    found = {int(path.stem): path.stat().st_size for path in folder.glob("*.steps")}
    return {pid: count for pid, count in found.items() if count}
