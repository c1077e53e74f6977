"""A wrapped function is what it was, to whoever calls or looks at it, and a range when told to."""

import asyncio
import importlib
import inspect
import sys

import pytest

from instrumented_runtime.hooks.imports import WhenImported
from instrumented_runtime.hooks.process import Process
from instrumented_runtime.hooks.targets import Hook, Target, attach

SOURCE = '''
import functools

class Engine:
    __slots__ = ("size",)

    def __init__(self, size):
        self.size = size

    def step(self, batch, *, grow=0):
        """Step."""
        return self.size + batch + grow

    @classmethod
    def made(cls, size):
        return cls(size)

    @staticmethod
    def twice(number):
        return 2 * number

    @property
    def half(self):
        return self.size / 2

    def fail(self):
        raise KeyError("theirs")

    async def later(self):
        return 1

    def many(self):
        yield 1

    tied = functools.partial(max, 1)

class Derived(Engine):
    pass

def plain(a, b=2):
    return a + b

plain.note = "kept"
'''


class Written:
    """Takes the place of a backend: what was written, in order."""

    def __init__(self):
        self.lines = []

    def mark(self, text):
        self.lines.append(f"mark {text}")

    def push(self, text):
        self.lines.append(f"push {text}")

    def pop(self):
        self.lines.append("pop")


@pytest.fixture
def hooked(tmp_path, monkeypatch):
    """Return `hooked(*targets)`: module, process and lines of a small package under a hook."""
    (tmp_path / "small_engine.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    process = Process({})
    monkeypatch.setattr(process, "watch", lambda: None)
    written = process.markers._backend = Written()
    process.markers._is_off = False

    def build(*targets):
        when_imported = WhenImported(process.report.problem)
        when_imported.install()
        rows = [
            target if isinstance(target, Target) else Target("small_engine", *target.split(":"))
            for target in targets
        ]
        attach(Hook("small", tuple(rows)), process, when_imported)
        sys.modules.pop("small_engine", None)
        return importlib.import_module("small_engine"), process, written.lines

    yield build
    sys.modules.pop("small_engine", None)
    assert process.report.problems == []


def test_methods_of_each_kind_answer_as_before_and_are_ranges_while_the_gate_is_open(hooked):
    names = ["step", "made", "twice", "half", "fail"]
    module, process, lines = hooked(*(f"Engine.{name}" for name in names), "plain")

    def used():
        engine = module.Engine.made(3)
        answers = [engine.step(4, grow=1), engine.twice(5), module.Engine.twice(5), engine.half]
        with pytest.raises(KeyError, match="theirs"):
            engine.fail()
        return [*answers, module.plain(1), type(engine)]

    expected = [8, 10, 10, 1.5, 3, module.Engine]
    assert used() == expected
    assert lines == []
    process.gate[0] = 1
    assert used() == expected
    texts = ["made", "step", "twice", "twice", "half", "fail"]
    assert lines == [
        line
        for text in [*(f"Engine.{t}" for t in texts), "plain"]
        for line in (f"push {text}", "pop")
    ]
    process.gate[0] = 0
    assert used() == expected
    assert len(lines) == 14


def test_a_wrapped_function_looks_like_itself(hooked):
    module, _, _ = hooked("plain", "Engine.step")
    assert str(inspect.signature(module.plain)) == "(a, b=2)"
    assert str(inspect.signature(module.Engine.step)) == "(self, batch, *, grow=0)"
    assert (module.plain.__name__, module.plain.__module__) == ("plain", "small_engine")
    assert (module.Engine.step.__qualname__, module.Engine.step.__doc__) == ("Engine.step", "Step.")
    assert module.plain.note == "kept"
    assert module.plain.__wrapped__(1) == 3


def test_a_range_ends_though_the_gate_closes_within_and_none_ends_that_did_not_begin(hooked):
    module, process, lines = hooked("Engine.step")

    class Batch:
        def __radd__(self, size):
            process.gate[0] = 1 - process.gate[0]
            return size

    engine = module.Engine(1)
    process.gate[0] = 1
    engine.step(Batch())
    assert lines == ["push Engine.step", "pop"]
    engine.step(Batch())
    assert lines == ["push Engine.step", "pop"]


def test_what_is_missing_changed_or_no_function_is_reported_and_the_rest_wrapped(hooked):
    module, process, _ = hooked(
        "Engine.gone", "Gone.step", "Engine.step:self batch", "plain:a b", "Engine.tied",
        "Engine.later", "Engine.many", "Derived.step", Target("small_engine", "off", option="NO"),
    )  # fmt: skip
    report = process.report.hooks["small"]
    named = {
        key: [line.removeprefix("small_engine:") for line in report[key]]
        for key in ("found", "missing", "changed", "waiting")
    }
    assert named == {
        "found": ["Engine.step", "plain", "Derived.step"],
        "missing": ["Engine.gone", "Gone.step"],
        "changed": [
            "Engine.step: takes (self batch grow), was (self batch)",
            "Engine.tied: left alone, it is a partial",
            "Engine.later: left alone, it is async",
            "Engine.many: left alone, it is a generator",
        ],
        "waiting": [],
    }
    assert asyncio.run(module.Engine(1).later()) == 1
    assert list(module.Engine(1).many()) == [1]


def test_a_module_that_takes_the_name_gets_the_wrapped_one_and_a_reload_is_wrapped_again(
    hooked, tmp_path
):
    (tmp_path / "small_user.py").write_text("from small_engine import plain")
    module, process, lines = hooked("plain")
    user = importlib.import_module("small_user")
    del sys.modules["small_user"]
    process.gate[0] = 1
    assert user.plain(1) == 3
    importlib.reload(module)
    assert module.plain(1) == 3
    assert lines == ["push plain", "pop"] * 2


def test_a_backend_that_fails_is_reported_once_and_the_server_s_call_is_made(hooked):
    module, process, _ = hooked("plain")

    class Broken(Written):
        def push(self, text):
            raise OSError("no profiler")

    process.markers._backend = Broken()
    process.gate[0] = 1
    assert [module.plain(1), module.plain(2)] == [3, 4]
    assert process.report.problems == ["no more markers: OSError('no profiler')"]
    process.report.problems.clear()


def test_modules_in_an_archive_are_waited_for_as_well(hooked, tmp_path, monkeypatch):
    import zipfile

    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("packed_engine.py", "def plain():\n    return 1\n")
        archive.writestr("packed_other.py", "")  # of the same loader, and nobody waits for it
    monkeypatch.syspath_prepend(tmp_path / "packed.zip")
    _, process, lines = hooked(Target("packed_engine", "plain"))
    packed = importlib.import_module("packed_engine")
    importlib.import_module("packed_other")
    assert process.report.hooks["small"]["missing"] == []
    process.gate[0] = 1
    assert packed.plain() == 1
    assert lines == ["push plain", "pop"]
    for name in ("packed_engine", "packed_other"):
        del sys.modules[name]
