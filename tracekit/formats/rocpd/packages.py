"""A `.rpdb` package: a folder of rocpd files with an index."""

import re
from collections.abc import Sequence
from pathlib import Path

from tracekit.errors import UnreadableTrace

_INDEX = "index.yaml"
_ENTRY = re.compile(r"""^\s*(?:-|files:)\s+["']?(?P<name>[^"'\n]+?)["']?\s*$""")


def is_package(path: Path) -> bool:
    """Return whether a folder is a package: by its index, or by its name where it has none."""
    if not path.is_dir():
        return False
    index = path / _INDEX
    if not index.is_file():
        return path.suffix == ".rpdb"
    text = index.read_text(errors="replace")
    return "rocprofiler-sdk:" in text and "rocpd:" in text


def package_members(path: Path) -> Sequence[Path]:
    """Return the files that a package lists; without an index, the `.db` files in it.

    The index is YAML of one fixed shape, written by `rocpd package`; patterns are expanded.

    Raises:
        UnreadableTrace: It lists no file, or one that is not there.
    """
    index = path / _INDEX
    names = _listed(index.read_text(errors="replace")) if index.is_file() else ["*.db"]
    found = [file for name in names for file in _expanded(path, name)]
    if not found:
        raise UnreadableTrace(path, "lists no rocpd file", f"Check its {_INDEX}")
    if missing := [file for file in found if not file.is_file()]:
        raise UnreadableTrace(
            path, f"lists {missing[0].name}, which is not there", f"Check its {_INDEX}"
        )
    return found


def _listed(text: str) -> list[str]:
    """Return the entries of the list (or the one value) under `files:`."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.strip().startswith("files:")]
    if not starts:
        return []
    first = _ENTRY.match(lines[starts[0]])
    if first:
        return [first["name"]]
    names = []
    for line in lines[starts[0] + 1 :]:
        entry = _ENTRY.match(line)
        if not entry or not line.strip().startswith("-"):
            break
        names.append(entry["name"])
    return names


def _expanded(folder: Path, name: str) -> list[Path]:
    if not any(mark in name for mark in "*?["):
        return [folder / name]
    return sorted(folder.glob(name))
