"""Which hooks and patches there are: the file that `instrumented_runtime` keeps for us.

The file is found beside the package, which is never imported: it may need what tracekit does not.
"""

import importlib.util
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tracekit.errors import BadInput, os_problem

_PACKAGE = "instrumented_runtime"
_FILE = "hooks_and_patches.toml"


class Hook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One hook.

    Attributes:
        name: The user's name of it.
        summary: One line.
        package: What has to be imported for it to do anything; empty if nothing.
        default: Whether it runs unless the user says otherwise.
    """

    name: str
    summary: str
    package: str
    default: bool = False


class Patch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One patch; none is applied unless the user names it.

    Attributes:
        name: The user's name of it.
        summary: One line.
        package: What it changes.
        fixes: The problem, in words.
        caution: What to know before.
    """

    name: str
    summary: str
    package: str
    fixes: str
    caution: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    hooks_path: str
    hook: list[Hook] = []
    patch: list[Patch] = []


@dataclass(frozen=True, slots=True)
class HooksManifest:
    """What the installed `instrumented_runtime` offers.

    Attributes:
        path_entry: Folder to put on the PYTHONPATH of a server.
        hooks: By name.
        patches: By name.
    """

    path_entry: Path
    hooks: Mapping[str, Hook]
    patches: Mapping[str, Patch]


def hooks_manifest() -> HooksManifest:
    """Read the manifest.

    Raises:
        BadInput: `instrumented_runtime` is not installed, or its manifest is missing or not as
            this version of tracekit knows it.
    """
    folder = _folder()
    path = folder / _FILE
    remedy = "Install tracekit and instrumented_runtime of one version"
    try:
        content = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File)
    except OSError as error:
        problem = f"cannot be read: {os_problem(error)}"
        raise BadInput(path, problem, remedy) from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadInput(path, f"is not the known manifest: {error}", remedy) from error
    return HooksManifest(
        path_entry=folder / content.hooks_path,
        hooks={hook.name: hook for hook in content.hook},
        patches={patch.name: patch for patch in content.patch},
    )


def _folder() -> Path:
    # Finds a top-level package without running any of it.
    spec = importlib.util.find_spec(_PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise BadInput(
            _PACKAGE,
            "is not installed, and hooks and patches are part of it",
            "Install it beside tracekit: pip install 'tracekit-rocm[runtime]'",
        )
    return Path(places[0])
