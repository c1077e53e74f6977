"""What a hook wraps: found by name after the import, compared with what it was, and replaced."""

import sys
from collections.abc import Callable, Iterable
from functools import partial, update_wrapper
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any, NamedTuple

from .imports import WhenImported
from .process import Process

Function = Callable[..., Any]
# Given the process, the function and the text of a range, returns what takes the function's place.
Maker = Callable[[Process, Function, str], Function]
_WRAPPED = "__tracekit_hook__"
_UNTOLD = "*args **kwargs"


def ranged(process: Process, function: Function, text: str) -> Function:
    """Return a function that is a range while the gate is open, and else only calls on."""
    gate, push, pop = process.gate, process.markers.push, process.markers.pop

    def call(*args: Any, **kwargs: Any) -> Any:
        if not gate[0]:
            return function(*args, **kwargs)
        pushed = push(text)
        try:
            return function(*args, **kwargs)
        finally:
            if pushed:
                pop()

    return call


class Target(NamedTuple):
    """One function of a foreign module.

    Attributes:
        module: Its module.
        attribute: Its name there, `Class.method`.
        parameters: Names of its parameters when the hook was written, separated by spaces; ""
            where nobody has looked.
        make: What becomes of it.
        option: Variable that must be "1" for it to be wrapped at all.
    """

    module: str
    attribute: str
    parameters: str = ""
    make: Maker = ranged
    option: str = ""


class Hook(NamedTuple):
    """A list of targets under one name.

    Attributes:
        name: The user's name of it.
        targets: What it wraps.
        watches: Modules whose import alone makes the process follow the window.
        start: Run at once, before any target is there.
    """

    name: str
    targets: tuple[Target, ...] = ()
    watches: tuple[str, ...] = ()
    start: Callable[[Process], None] | None = None


def ranges(package: str, table: str) -> tuple[Target, ...]:
    """Return targets from lines `module attribute parameter…`, modules within the package."""
    rows = [line.split() for line in table.strip().splitlines()]
    return tuple(Target(f"{package}.{row[0]}", row[1], " ".join(row[2:])) for row in rows)


def attach(hook: Hook, process: Process, when_imported: WhenImported) -> None:
    """Have all targets of a hook wrapped as their modules are imported."""
    state: dict[str, list[str]] = {"found": [], "missing": [], "changed": [], "waiting": []}
    process.report.hooks[hook.name] = state
    by_module: dict[str, list[Target]] = {name: [] for name in hook.watches}
    for target in hook.targets:
        if not target.option or process.environment.get(target.option) == "1":
            by_module.setdefault(target.module, []).append(target)
    state["waiting"].extend(by_module)
    if hook.start is not None:
        hook.start(process)
    for name, targets in by_module.items():
        when_imported(name, partial(_wrap_all, process, hook.name, targets))


def _wrap_all(
    process: Process, hook_name: str, targets: Iterable[Target], module: ModuleType
) -> None:
    state = process.report.hooks[hook_name]
    for target in targets:
        label = f"{target.module}:{target.attribute}"
        try:
            change = _wrap(process, target, module)
        except LookupError:
            _add(state["missing"], label)
        except Exception as problem:
            _add(state["changed"], f"{label}: left alone, {problem}")
        else:
            _add(state["found"], label)
            if change:
                _add(state["changed"], f"{label}: {change}")
    if module.__name__ in state["waiting"]:
        state["waiting"].remove(module.__name__)
    package = module.__name__.partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", None)
    if version is not None:
        process.report.versions[package] = str(version)
    process.watch()
    process.report.write()


def _add(lines: list[str], line: str) -> None:
    if line not in lines:
        lines.append(line)


def _wrap(process: Process, target: Target, module: ModuleType) -> str:
    """Put the wrapper in place; return what is another than it was, in words.

    Raises:
        LookupError: There is no such name.
        TypeError: It is nothing that can be wrapped.
    """
    *path, name = target.attribute.split(".")
    owner: Any = module
    for part in path:
        owner = _static(owner, part)
    found = _static(owner, name)
    function = found
    if isinstance(found, staticmethod | classmethod):
        function = found.__func__
    elif isinstance(found, property):
        function = found.fget
    if getattr(function, _WRAPPED, False):
        return ""
    _check(function)
    parameters = _parameters(function)
    made = target.make(process, function, target.attribute)
    update_wrapper(made, function)
    setattr(made, _WRAPPED, True)
    replacement: Any = made
    if isinstance(found, staticmethod | classmethod):
        replacement = type(found)(made)
    elif isinstance(found, property):
        replacement = property(made, found.fset, found.fdel, found.__doc__)
    setattr(owner, name, replacement)
    if not target.parameters or parameters in (target.parameters, _UNTOLD):
        return ""
    return f"takes ({parameters}), was ({target.parameters})"


def _static(owner: Any, name: str) -> Any:
    import inspect  # here, since most processes have nothing to wrap

    try:
        return inspect.getattr_static(owner, name)
    except AttributeError:
        raise LookupError(name) from None


def _check(function: object) -> None:
    import inspect

    if not isinstance(function, FunctionType | BuiltinFunctionType | MethodDescriptorType):
        raise TypeError(f"it is a {type(function).__name__}")
    # Ranges are kept per thread; other tasks run on the thread between one's start and its end.
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError("it is async")
    # A range would end before the first value is asked for.
    if inspect.isgeneratorfunction(function):
        raise TypeError("it is a generator")


def parameter_names(function: Function) -> list[str]:
    """Return the names a function can be called with; none if it does not tell."""
    return [name for name in _parameters(function).split() if not name.startswith("*")]


def _parameters(function: Function) -> str:
    import inspect

    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return _UNTOLD
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    return " ".join(stars.get(parameter.kind.name, "") + parameter.name for parameter in parameters)
