"""A plug-in room refuses a module that does not keep its one promise."""

import sys
from dataclasses import dataclass

import pytest

from tracekit.registry import load_room


@dataclass(frozen=True)
class Plugin:
    name: str


@pytest.fixture
def room(tmp_path, monkeypatch):
    def write(**modules):
        folder = tmp_path / "some_room"
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(f"from {__name__} import Plugin\n{text}")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
        return "some_room"

    yield write
    for name in [name for name in sys.modules if name.split(".")[0] == "some_room"]:
        del sys.modules[name]


def test_plugins_are_found_by_their_constant_in_order_of_module(room):
    name = room(beta="PLUGIN = Plugin('b')", alpha="PLUGIN = Plugin('a')")
    assert list(load_room(name, "PLUGIN", Plugin)) == ["a", "b"]


@pytest.mark.parametrize("text", ["", "PLUGIN = 'a'"])
def test_a_module_without_the_typed_constant_is_a_defect(room, text):
    with pytest.raises(RuntimeError, match=r"some_room\.alpha must define PLUGIN: Plugin"):
        load_room(room(alpha=text), "PLUGIN", Plugin)


def test_a_taken_name_is_a_defect(room):
    name = room(alpha="PLUGIN = Plugin('a')", beta="PLUGIN = Plugin('a')")
    with pytest.raises(RuntimeError, match=r"beta: the name 'a' is taken"):
        load_room(name, "PLUGIN", Plugin)
