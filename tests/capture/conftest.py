"""What tests of captures share: the toy profiler in the room, and that nothing is left running."""

from dataclasses import replace

import psutil
import pytest
from toy_session import PROFILER, ToySession
from watching import is_gone

from tracekit.capture.profilers import profilers


@pytest.fixture
def sessions(monkeypatch):
    """The sessions of the toy profiler, which the room has for the length of a test."""
    made = []

    class Kept(ToySession):
        def __init__(self, asked):
            super().__init__(asked)
            made.append(self)

    monkeypatch.setitem(profilers(), "toy", replace(PROFILER, start=Kept))
    return made


@pytest.fixture
def nothing_left():
    """Fails a test that leaves a process of this one behind."""
    before = set(psutil.Process().children(recursive=True))
    yield
    left = set(psutil.Process().children(recursive=True)) - before
    assert [process for process in left if not is_gone(process.pid)] == []
