"""Stand-ins for packages that SGLang imports and that are not installed: anything, doing nothing.

Only what SGLang itself asks for is stood in for; a package that others probe stays absent.
"""

import importlib.machinery
import json
import pickle
import re
import sys
import types

# Never stood in for: it is there, or its absence is what SGLang expects of a machine without GPU.
_REAL = ("sglang", "torch", "torch_npu", "aiter", "vllm")


class _AnyClass(type):
    def __getattr__(cls, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = _AnyClass(name, (Anything,), {})
        setattr(cls, name, made)
        return made

    def __getitem__(cls, _key):
        return cls

    def __setitem__(cls, _key, _value):
        pass

    def __or__(cls, _other):
        return cls

    __ror__ = __or__

    def __iter__(cls):
        return iter(())

    def __contains__(cls, _item):
        return False

    def __ge__(cls, _other):
        return False

    __gt__ = __le__ = __lt__ = __ge__


class Anything(metaclass=_AnyClass):
    """A class, a base class, a decorator or a value, whatever is wanted of it."""

    __class_validators__ = ()

    def __init_subclass__(cls, **_given):
        super().__init_subclass__()

    def __new__(cls, *args, **kwargs):
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType):
            return args[0]
        return object.__new__(cls)

    def __init__(self, *_args, **_kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return type(self)(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(type(self), name)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source, _handler):
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _AnyModule(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        value = getattr(Anything, name)
        setattr(self, name, value)
        return value


class StandIns:
    """The last finder: finds everything that a module of SGLang imports and nobody else finds."""

    def __init__(self):
        self.names = set()

    def find_spec(self, name, path=None, _target=None):
        top = name.partition(".")[0]
        if top in _REAL or (top not in self.names and not _asked_by_sglang()):
            return None
        if path is not None and top not in self.names:
            return None
        self.names.add(top)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _AnyModule(spec.name)

    def exec_module(self, _module):
        pass


def _asked_by_sglang():
    frame = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("sglang")


def install():
    """Make SGLang importable where only it is installed."""
    # Before what it would take for the real ones.
    import torch.utils.data  # noqa: F401

    sys.modules.setdefault("dill", pickle)
    sys.modules.setdefault("orjson", json)
    sys.modules.setdefault("regex", re)
    sys.meta_path.append(StandIns())
