"""Reads the installed source of a module without importing it, to see whether a patch fits it."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path


class Unfit(Exception):
    """The installed version is not what a patch was made for; says why in one sentence."""


def tree(module: str) -> ast.Module:
    """Return the parsed source of a module whose top package is imported.

    Raises:
        Unfit: There is no such source.
    """
    path = _path(module)
    if path is None:
        raise Unfit(f"this version has no {module}")
    return ast.parse(path.read_bytes())


def function(within: ast.AST, name: str) -> ast.FunctionDef:
    """Return a function by its name, or `Class.name`.

    Raises:
        Unfit: There is none, or several.
    """
    node = within
    for part in name.split("."):
        kinds = ast.FunctionDef | ast.ClassDef
        found = [n for n in getattr(node, "body", []) if isinstance(n, kinds) and n.name == part]
        if len(found) != 1:
            raise Unfit(f"this version has no {name}")
        node = found[0]
    if not isinstance(node, ast.FunctionDef):
        raise Unfit(f"in this version {name} is no function")
    return node


def has(within: ast.AST, name: str) -> bool:
    """Return whether there is such a function."""
    try:
        function(within, name)
    except Unfit:
        return False
    return True


def parameters(of: ast.FunctionDef) -> list[str]:
    """Return the names of all parameters but `self`."""
    given = of.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return names[1:] if names[:1] == ["self"] else names


def require_parameters(of: ast.FunctionDef, name: str, expected: list[str]) -> None:
    """Require exactly these parameters in this order, without `*args` and `**kwargs`.

    Raises:
        Unfit: They are others.
    """
    found = parameters(of)
    if found != expected or of.args.vararg or of.args.kwarg:
        raise Unfit(f"{name} takes ({', '.join(found)}), not ({', '.join(expected)})")


def calls(within: ast.AST, name: str) -> list[ast.Call]:
    """Return the calls of what is written so, for example `self.delayer.should_delay`."""
    return [
        node
        for node in ast.walk(within)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name
    ]


def only_call(within: ast.AST, name: str, place: str) -> ast.Call:
    """Return the one call of what is written so.

    Raises:
        Unfit: There is none, or several.
    """
    found = calls(within, name)
    if len(found) != 1:
        raise Unfit(f"{place} calls {name} {len(found)} times, not once")
    return found[0]


def arguments(call: ast.Call) -> list[str]:
    """Return what is given to a call, as it is written: `x`, `name=x`."""
    given = [ast.unparse(argument) for argument in call.args]
    return given + [f"{word.arg}={ast.unparse(word.value)}" for word in call.keywords]


def assigned(within: ast.AST, target: str) -> list[str]:
    """Return what is assigned to a target, as it is written."""
    return [
        ast.unparse(node.value)
        for node in ast.walk(within)
        if isinstance(node, ast.Assign) and target in map(ast.unparse, node.targets)
    ]


def only_assigned(within: ast.AST, target: str, place: str) -> str:
    """Return what is assigned to a target, as it is written.

    Raises:
        Unfit: Nothing is, or something several times.
    """
    found = assigned(within, target)
    if len(found) != 1:
        raise Unfit(f"{place} sets {target} {len(found)} times, not once")
    return found[0]


def uses(within: ast.AST, name: str) -> int:
    """Return how often a bare name is read."""
    return sum(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for node in ast.walk(within)
    )


def names(module: ast.Module) -> set[str]:
    """Return the names that a module's own body binds, imports inside `try` and `if` included."""
    return set(_bound(module.body))


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from (a.asname or a.name.partition(".")[0] for a in node.names)
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign():
                yield from map(ast.unparse, node.targets)
            case ast.If() | ast.Try():
                yield from _bound(node.body)
                yield from _bound(node.orelse)


def require_names(module: ast.Module, place: str, expected: list[str]) -> None:
    """Require that a module binds these names.

    Raises:
        Unfit: It does not.
    """
    missing = [name for name in expected if name not in names(module)]
    if missing:
        raise Unfit(f"{place} has no {', '.join(missing)}")


def _path(module: str) -> Path | None:
    top, *inner = module.split(".")
    package = sys.modules.get(top)
    for root in getattr(package, "__path__", ()):
        base = Path(root, *inner)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None
