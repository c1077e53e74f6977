"""A step holds what belongs to it and nothing else, and never keeps a scheduler from its work."""

import sys
import threading

import pytest

from instrumented_runtime.hooks.imports import WhenImported
from instrumented_runtime.hooks.markers import Markers, statement
from instrumented_runtime.hooks.process import Process
from instrumented_runtime.hooks.steps import Steps, ending, step
from instrumented_runtime.hooks.targets import ranged


class Written:
    """Takes the place of a backend: each range with the ranges it lies in."""

    def __init__(self):
        self.open, self.ranges = [], []

    def push(self, text):
        self.open.append(text)

    def pop(self):
        inside = "/".join(self.open)
        self.open.pop()
        self.ranges.append(inside)


class Loop:
    """A scheduler's functions, hooked: `run` launches a batch, `idle` runs when there is none."""

    def __init__(self, describe=lambda *_given: {"kind": "decode"}):
        self.process = Process({})
        self.written = self.process.markers._backend = Written()
        self.process.markers._is_off = False
        steps = Steps()
        self.run = step(steps, describe, lasts=True)(self.process, lambda batch: batch, "run")
        self.idle = ending(steps)(self.process, lambda: "idle", "idle")
        self.within = ranged(self.process, lambda batch: self.run(batch), "within")

    def gate(self, number):
        self.process.gate[0] = number


def test_a_step_left_open_by_one_window_is_over_before_the_next_begins():
    loop = Loop()
    loop.gate(1)
    loop.run(1)
    assert loop.written.open == ["tk1 step 1 kind=decode"]
    # The window closes while the server is busy: the batch after it belongs to nobody.
    loop.gate(0)
    loop.run(2)
    assert loop.written.open == []
    loop.gate(2)
    loop.run(3)
    loop.idle()
    assert loop.written.ranges == [
        "tk1 step 1 kind=decode/run",
        "tk1 step 1 kind=decode",
        "tk1 step 2 kind=decode/run",
        "tk1 step 2 kind=decode",
    ]


def test_a_batch_launched_within_a_range_ends_no_range_that_is_not_its_own():
    loop = Loop()
    loop.gate(1)
    loop.run(1)
    loop.within(2)
    loop.idle()
    one, two = "tk1 step 1 kind=decode", "tk1 step 2 kind=decode"
    assert loop.written.ranges == [
        f"{one}/run",
        f"{one}/within/{two}/run",
        f"{one}/within/{two}",
        f"{one}/within",
        one,
    ]


@pytest.mark.parametrize("values", [{"bs": "many"}, {"bs": []}, {"no such key": 1}, {"kind": 1.5}])
def test_a_step_that_cannot_be_said_is_said_with_less_and_the_batch_runs(values):
    loop = Loop(lambda *_given: values)
    loop.gate(1)
    assert loop.run("batch") == "batch"
    assert loop.written.open[:1] in (["tk1 step 1"], ["tk1 step 1 kind=1.5"])


def test_a_batch_runs_even_without_a_grammar(monkeypatch):
    def fails(*_given, **_values):
        raise OSError("no such file")

    monkeypatch.setattr("instrumented_runtime.hooks.steps.statement", fails)
    loop = Loop()
    loop.gate(1)
    assert loop.run("batch") == "batch"
    assert loop.written.ranges == ["run"]
    assert any("no such file" in problem for problem in loop.process.report.problems)


def test_threads_that_write_their_first_markers_at_once_all_write(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr("instrumented_runtime.hooks.markers._LOADED", {})
    statement.cache_clear()
    interval = sys.getswitchinterval()
    problems, failed, start = [], [], threading.Barrier(8)
    markers = Markers("record_function", problems.append)

    def write():
        start.wait()
        try:
            for number in range(20):
                markers.say("sync", number)
                if markers.push("a range"):
                    markers.pop()
        except Exception as problem:  # noqa: BLE001  of any kind
            failed.append(problem)

    threads = [threading.Thread(target=write) for _ in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert (problems, failed) == ([], [])


def test_who_only_looks_for_a_module_takes_it_from_no_thread_that_imports_it(monkeypatch):
    when_imported = WhenImported(pytest.fail)
    when_imported("json.tool", lambda _module: None)
    found = []

    class Other:
        """A finder that is asked from inside, while another thread looks for the same module."""

        def find_spec(self, name, path, target=None):
            if name == "json.tool" and not found:
                found.append(None)
                import json

                look = threading.Thread(
                    target=lambda: found.append(when_imported.find_spec(name, json.__path__))
                )
                look.start()
                look.join()

    monkeypatch.setattr(sys, "meta_path", [when_imported, Other(), *sys.meta_path])
    import json

    assert when_imported.find_spec("json.tool", json.__path__) is not None
    assert found[1] is not None


def test_a_range_ends_in_the_backend_it_began_in_whoever_comes_first(monkeypatch):
    made, together, problems = [], threading.Barrier(2), []

    class Backends:
        @staticmethod
        def backend_named(_name):
            together.wait(10)
            made.append(Written())
            return made[-1]

    monkeypatch.setattr("instrumented_runtime.hooks.markers.beside", lambda _name: Backends)
    markers = Markers("roctx", problems.append)

    def write():
        markers.push("a range")
        together.wait(10)
        markers.pop()

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sorted(len(one.ranges) for one in made) == [0, 2]
