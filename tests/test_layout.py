"""The limits that keep the project readable; raising one is a reviewed change of this file."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("tracekit", "instrumented_runtime", "dashboards")
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
FORBIDDEN_NAMES = {
    "utils",
    "util",
    "helpers",
    "common",
    "misc",
    "shared",
    "core",
    "base",
    "manager",
}
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_short_its_functions_too_and_its_name_says_what_it_is(path):
    source = path.read_text()
    assert len(source.splitlines()) <= MAX_FILE_LINES
    assert path.stem not in FORBIDDEN_NAMES
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = {
        function.name: function.end_lineno - function.lineno + 1
        for function in functions
        if function.end_lineno - function.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == {}
