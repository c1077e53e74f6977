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
    said, status = interrupted_while_it_imports(command, tmp_path)
    assert "Traceback" not in said
    assert status in INTERRUPTED


def interrupted_while_it_imports(command, folder):
    """Return what a command says after an interrupt and how it ends.

    Python drops an interrupt that falls into a callback of its own import system, says so, and goes
    on. The command cannot know, so the next attempt counts.
    """
    # Says each import when it is done; those of numpy come early, one by one.
    python = [sys.executable, "-X", "importtime", "-m", *f"instrumented_runtime.{command}".split()]
    for _ in range(5):
        said = []
        with subprocess.Popen(
            python, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as child:
            assert next((line for line in child.stderr if "numpy" in line), None)
            child.send_signal(signal.SIGINT)
            for line in child.stderr:
                said.append(line)
                if line.startswith("Exception ignored in"):
                    child.kill()
        if child.returncode != -signal.SIGKILL:
            break
    return "".join(said), child.returncode


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
