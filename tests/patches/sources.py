"""SGLang's sources with an edit, as another version would have them; nothing of it is run."""

import ast
import functools
import sys
import types
from pathlib import Path

import patches_here
import pytest
import torch

SGLANG = Path(__file__).resolve().parents[2] / ".venv" / "foreign" / "sglang"


def changed_sglang(patch, modules, edits, tmp_path, monkeypatch):
    """Install a patch where SGLang's source was edited.

    Args:
        patch: Its name.
        modules: Of SGLang, that the patch reads; those whose source is among them are imported in
            this order, as modules of the same shape that do nothing.
        edits: By module, `(old, new)`; the old text must be there, its first place is changed.
        tmp_path: Where the sources go.
        monkeypatch: Puts the package there, on a machine with HIP.

    Returns:
        The patch's last report, and what of the modules it replaced, by name.
    """
    if not SGLANG.is_dir():
        pytest.skip("sglang is not in .venv/foreign; `make` puts it there")
    imported = {}
    for module in modules:
        inner = Path(*module.split(".")[1:]).with_suffix(".py")
        text = (SGLANG / inner).read_text()
        if module in edits:
            old, new = edits[module]
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / "sglang" / inner
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        imported[module] = _shape(module, text)
    package = types.ModuleType("sglang")
    package.__path__ = [str(tmp_path / "sglang")]
    monkeypatch.setitem(sys.modules, "sglang", package)
    monkeypatch.setattr(torch.version, "hip", "7.2.0")
    before = _functions(imported)
    reports = patches_here.install(patch, modules=imported)
    after = _functions(imported)
    return reports[patch], sorted(name for name in after if after[name] is not before[name])


@functools.cache
def _outline(text):
    """Return what a source defines: functions by name, and classes with their methods' names."""
    outline = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            outline[node.name] = [n.name for n in node.body if isinstance(n, ast.FunctionDef)]
        elif isinstance(node, ast.FunctionDef):
            outline[node.name] = None
    return outline


def _shape(name, text):
    module = types.ModuleType(name)
    for defined, methods in _outline(text).items():
        if methods is None:
            setattr(module, defined, _nothing())
        else:
            inner = {method: _nothing() for method in methods}
            setattr(module, defined, type(defined, (), inner))
    module.envs = types.SimpleNamespace(
        SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=types.SimpleNamespace(get=_nothing())
    )
    return module


def _nothing():
    def nothing(*args, **kwargs):
        pass

    return nothing


def _functions(modules):
    found = {}
    for module in modules.values():
        for name, value in vars(module).items():
            if isinstance(value, type):
                found |= {f"{name}.{key}": inner for key, inner in vars(value).items()}
            elif callable(value):
                found[name] = value
    return {name: value for name, value in found.items() if isinstance(value, types.FunctionType)}
