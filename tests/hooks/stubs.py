"""Stand-ins for packages that a server of others imports and this machine lacks.

Each is a module without content: whatever is asked of it is a class that takes anything and does
nothing. Only packages named are stood in for, so that a missing module of the server itself fails.
"""

import re
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

# What SGLang 0.5.23 imports and a machine that only tests this project does not have.
OF_SGLANG = """IPython PIL aiohttp compressed_tensors dill einops gguf huggingface_hub orjson
partial_json_parser pybase64 requests safetensors sentencepiece setproctitle torchvision tqdm
transformers tvm_ffi yaml zmq""".split()
# Where the server computes with the answer as it loads.
_VALUES = {"dill.dumps": lambda _value: b""}


class _Anything(type):
    def __getattr__(cls, name):
        if name == "__class_validators__":
            return []
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)

    def __or__(cls, other):
        return cls

    def __ror__(cls, other):
        return cls

    def __getitem__(cls, item):
        return cls

    def __setitem__(cls, item, value):
        pass

    def __iter__(cls):
        return iter(())


def _anything(name):
    def create(cls, *args, **kwargs):
        # As a decorator it leaves the function what it is.
        return args[0] if len(args) == 1 and callable(args[0]) else object.__new__(cls)

    return _Anything(
        name,
        (),
        {
            "__new__": create,
            "__init_subclass__": classmethod(lambda cls, **kwargs: None),
            "__init__": lambda self, *args, **kwargs: None,
            "__call__": lambda self, *args, **kwargs: args[0] if args else None,
            "__getattr__": lambda self, name: _anything(name),
            "__getitem__": lambda self, item: self,
            "__setitem__": lambda self, item, value: None,
            "__or__": lambda self, other: self,
            "__ror__": lambda self, other: self,
        },
    )


class _Stub(ModuleType):
    __path__ = ()
    __version__ = "0"
    __file__ = "<stub>"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = _VALUES.get(f"{self.__name__}.{name}") or _anything(name)
        setattr(self, name, value)
        return value


class Stubs:
    """Finder and loader of the stand-ins; goes behind all other finders."""

    def __init__(self, packages):
        self.packages = frozenset(packages)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Stub(spec.name)

    def exec_module(self, module):
        pass


def stand_in(packages):
    # The one whose answers count: the module of the library that it grew out of will do.
    sys.modules.setdefault("regex", re)
    sys.meta_path.append(Stubs(packages))
