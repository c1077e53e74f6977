"""The manifest of hooks and patches is read as a file: `instrumented_runtime` is never imported."""

import importlib.util
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tracekit.capture.hooks.catalog import hooks_manifest
from tracekit.cli import main
from tracekit.errors import BadInput


def test_the_installed_manifest_names_a_folder_for_the_path_of_a_server():
    manifest = hooks_manifest()
    assert (manifest.path_entry / "sitecustomize.py").is_file()
    assert {name: patch.name for name, patch in manifest.patches.items()} == {
        name: name for name in manifest.patches
    }
    assert [hook.default for hook in manifest.hooks.values()].count(True) >= 1


@pytest.mark.parametrize("what", ["hooks", "patches", "profilers"])
def test_listing_imports_nothing_of_the_runtime(what):
    program = f"""
import sys
from tracekit.cli import main
code = main(["list", {what!r}])
assert not any(name.startswith("instrumented_runtime") for name in sys.modules)
sys.exit(code)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert all(re.fullmatch(r"[a-z0-9_-]+ {2,}\S.*", line) for line in done.stdout.splitlines())
    assert done.stdout


def test_what_is_listed_is_what_the_manifest_says(capfd):
    assert main(["list", "patches"]) == 0
    expected = {f"{p.name} {p.summary}" for p in hooks_manifest().patches.values()}
    assert {" ".join(line.split()) for line in capfd.readouterr().out.splitlines()} == expected
    assert main(["list", "hooks"]) == 0
    lines = capfd.readouterr().out.splitlines()
    off = {line.split()[0] for line in lines if line.endswith(" (off)")}
    assert off == {hook.name for hook in hooks_manifest().hooks.values() if not hook.default}


def test_without_the_runtime_it_says_how_to_get_it():
    program = """
import importlib.util
import sys
from tracekit.cli import main
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "instrumented_runtime" else find(name)
codes = [main(["list", what]) for what in ("hooks", "patches", "formats", "analyses")]
print(codes)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[2, 2, 0, 0]"
    assert done.stderr.count("pip install 'tracekit-rocm[runtime]'") == 2


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: no such file"),
        ("hooks_path = ", "is not the known manifest"),
        ('hooks_path = "p"\n[[hook]]\nname = "a"', "required field `summary`"),
        ('hooks_path = "p"\n[[tool]]\nname = "a"', "unknown field `tool`"),
    ],
)
def test_a_manifest_of_another_version_is_refused(content, problem, tmp_path, monkeypatch):
    if content is not None:
        (tmp_path / "hooks_and_patches.toml").write_text(content)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    with pytest.raises(BadInput) as refused:
        hooks_manifest()
    assert problem in str(refused.value)
    assert "of one version" in refused.value.remedy
