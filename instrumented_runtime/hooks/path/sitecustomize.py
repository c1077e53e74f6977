"""Put first on PYTHONPATH: loads the hooks into every Python process, before anything else.

Python looks for one `sitecustomize` only, so the one that this hides is run as well. Nothing that
goes wrong in the hooks may keep a server from starting; what goes wrong in the other is its own.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _install() -> None:
    wanted = os.environ.get("TRACEKIT_HOOKS") or os.environ.get("TRACEKIT_PATCHES")
    if not wanted or sys.version_info < (3, 10) or "_tracekit_hooks" in sys.modules:
        return
    from importlib.util import module_from_spec, spec_from_file_location

    # By location: the package that it is part of need not be importable in the server.
    folder = os.path.dirname(_HERE)
    spec = spec_from_file_location(
        "_tracekit_hooks",
        os.path.join(folder, "__init__.py"),
        submodule_search_locations=[folder],
    )
    if spec is None or spec.loader is None:
        raise ImportError("no package in " + folder)
    hooks = module_from_spec(spec)
    sys.modules["_tracekit_hooks"] = hooks
    spec.loader.exec_module(hooks)
    hooks.install(os.environ)


def _run_the_hidden_one() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    elsewhere = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _install()
except Exception as _problem:
    sys.stderr.write("tracekit: hooks are not installed: %r\n" % (_problem,))
_run_the_hidden_one()
