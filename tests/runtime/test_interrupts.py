"""Ctrl-C at any time, and processes that end before their work does."""

import operator
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from instrumented_runtime.reproducers.processes import in_processes

# A shell calls both 130: ended so, and by the signal itself.
INTERRUPTED = (130, -signal.SIGINT)


@pytest.mark.parametrize(
    "command", ["bench", "probe", "reproducers unordered-plan"], ids=lambda text: text.split()[0]
)
def test_ctrl_c_while_it_imports_ends_a_command_quietly(tmp_path, command):
    # Says each import when it is done; those of numpy come early, one by one.
    python = [sys.executable, "-X", "importtime", "-m", *f"instrumented_runtime.{command}".split()]
    with subprocess.Popen(
        python, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        begun = next(line for line in child.stderr if "numpy" in line)
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read()
    assert begun
    assert "Traceback" not in rest
    assert child.returncode in INTERRUPTED


def test_results_come_in_the_order_of_cases():
    assert list(in_processes(operator.neg, [3, 1, 2])) == [-3, -1, -2]


def test_a_process_that_is_killed_is_said():
    with pytest.raises(RuntimeError, match="a process of the run was killed"):
        list(in_processes(os._exit, [1]))


# While a process starts is when it has most to say; how long that takes depends on the machine.
@pytest.mark.parametrize("after_s", [0.03, 0.1, 0.5])
@pytest.mark.parametrize("reaches", ["group", "parent"])
def test_ctrl_c_ends_every_process_and_only_the_first_speaks(tmp_path, reaches, after_s):
    python = (
        "import time; from instrumented_runtime.reproducers.processes import in_processes;"
        "list(in_processes(time.sleep, [60] * 8))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", python],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        # Those that work, and one that multiprocessing keeps beside them.
        while len(children.read_text().split()) < 2 and child.poll() is None:
            time.sleep(0.01)
        time.sleep(after_s)
        (os.killpg if reaches == "group" else os.kill)(child.pid, signal.SIGINT)
        # At its end when no process has it open any more.
        said = child.communicate(timeout=20)[1]
    assert said.count("Traceback") == 1
    assert said.rstrip().endswith("KeyboardInterrupt")
