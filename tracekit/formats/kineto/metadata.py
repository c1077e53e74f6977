"""What tracekit reads of a file's top-level entries; any of them may hold anything."""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

_LATEST_BASE_NS = 2**62


def base_ns(metadata: Mapping[str, Any]) -> int | None:
    """Return what the file's times count from, null where it does not say."""
    base = _whole_number(metadata.get("baseTimeNanoseconds"))
    return base if base is not None and abs(base) <= _LATEST_BASE_NS else None


def rank(metadata: Mapping[str, Any]) -> int | None:
    """Return the rank in a distributed job."""
    return _whole_number(_rank(metadata))


def device_properties(metadata: Mapping[str, Any]) -> pl.DataFrame:
    """Return index, name and arch of the devices that the file describes."""
    rows = [
        (_whole_number(entry.get("id")), _text(entry.get("name")), _arch(entry))
        for entry in _device_entries(metadata)
    ]
    schema = {"index": pl.Int64, "name": pl.String, "arch": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row").unique("index")


def unusable(metadata: Mapping[str, Any]) -> list[str]:
    """Return the names of entries whose values are not the whole numbers they should be."""
    found = [_rank(metadata)]
    ids = [entry.get("id") for entry in _device_entries(metadata)]
    named = {"distributedInfo.rank": found, "deviceProperties.id": ids}
    names = [
        name
        for name, values in named.items()
        if any(value is not None and _whole_number(value) is None for value in values)
    ]
    has_base = metadata.get("baseTimeNanoseconds") is not None
    return ["baseTimeNanoseconds", *names] if has_base and base_ns(metadata) is None else names


def _rank(metadata: Mapping[str, Any]) -> object:
    distributed = metadata.get("distributedInfo")
    return distributed.get("rank") if isinstance(distributed, dict) else None


def _device_entries(metadata: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    entries = metadata.get("deviceProperties")
    return (e for e in (entries if isinstance(entries, list) else []) if isinstance(e, dict))


def _whole_number(value: object) -> int | None:
    """Return a JSON integer that 64 bits hold; true and false are none."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if -(2**63) <= value < 2**63 else None


def _text(value: object) -> str | None:
    """Return text without the half surrogate pairs that JSON can escape and UTF-8 cannot hold."""
    return value.encode("utf-8", "replace").decode() or None if isinstance(value, str) else None


def _arch(properties: Mapping[str, Any]) -> str | None:
    """Name NVIDIA's instruction set; AMD's needs the stepping, which Kineto does not write."""
    major, minor = properties.get("computeMajor"), properties.get("computeMinor")
    is_nvidia = str(properties.get("name")).startswith(("NVIDIA", "Tesla", "GeForce", "Quadro"))
    has_numbers = _whole_number(major) is not None and _whole_number(minor) is not None
    return f"sm_{major}{minor}" if is_nvidia and has_numbers else None
