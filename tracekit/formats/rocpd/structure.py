"""Whether a file has the tables, columns and values of schema 3: refused, or noted with a count."""

import re
from collections.abc import Iterator

from tracekit.errors import UnreadableTrace
from tracekit.formats.rocpd.connections import DAMAGED
from tracekit.formats.rocpd.database import Capture
from tracekit.formats.rocpd.values import USED
from tracekit.tables.notes import Severity

# What is unknown without a table that every writer makes.
_EXPECTED = {
    "rocpd_string": "the names of calls, ranges and copies",
    "rocpd_info_process": "process and command",
    "rocpd_info_agent": "the GPUs",
    "rocpd_info_kernel_symbol": "the names of kernels",
    "rocpd_event": "which call launched what",
    "rocpd_region": "what the host did",
    "rocpd_kernel_dispatch": "which kernels ran",
}
# Without these a row says nothing, and any value in their place would be made up.
_REQUIRED = {
    "rocpd_region": ("start", "end"),
    "rocpd_sample": ("timestamp",),
    "rocpd_kernel_dispatch": ("start", "end"),
    "rocpd_memory_copy": ("start", "end"),
}
_MAJOR = "3"
_FAULTS = {
    "undecodable": (
        "rocpd.text-undecodable",
        "Text that is not UTF-8, its bad bytes replaced, in {}; the file may be damaged",
    ),
    "unusable": (
        "rocpd.values-unusable",
        "Value that its column cannot hold, read as unknown, in {}; the file may be damaged",
    ),
    "impossible": (
        "rocpd.times-impossible",
        "Time beyond 2^62 ns, read as unknown, in {}; the file may be damaged",
    ),
}
Found = tuple[str, Severity, str, int]


def refuse_foreign_schema(capture: Capture) -> None:
    """Raise `UnreadableTrace` unless the schema is one we know, with the columns we cannot miss."""
    version = _version(capture)
    if version is not None and version.split(".")[0] != _MAJOR:
        # The value may be anything where the file is damaged, and is not repeated then.
        shown = version if re.fullmatch(r"[0-9]+(\.[0-9]+){0,3}", version) else "of no known number"
        raise UnreadableTrace(
            capture.path,
            f"has rocpd schema {shown}, and tracekit reads schema {_MAJOR}",
            "Update tracekit, or record with a rocprofv3 that writes schema 3",
        )
    for table, columns in capture.columns.items():
        needed = [] if table not in USED else ["id", *_REQUIRED.get(table, ())]
        if absent := [name for name in needed if name not in columns]:
            raise UnreadableTrace(
                capture.path, f"lacks the required column {absent[0]} of {table}", DAMAGED
            )


def structure_notes(capture: Capture) -> Iterator[Found]:
    """Yield code, severity, message and count of what differs from schema 3.

    Counts of values are of those read so far: ask last.
    """
    if _version(capture) is None:
        yield (
            "rocpd.schema-version-unknown",
            Severity.NOTICE,
            "The file does not state its schema version; read as schema 3",
            1,
        )
    missing = [name for name in _EXPECTED if name not in capture.columns]
    if missing:
        lost = ", ".join(_EXPECTED[name] for name in missing)
        yield (
            "rocpd.tables-missing",
            Severity.ERROR,
            f"No table {', '.join(missing)}: {lost} cannot be known; record again if the file "
            "should have it",
            len(missing),
        )
    absent = [
        f"{table}.{name}"
        for table, names in USED.items()
        for name in names.split()
        if table in capture.columns and not capture.has(table, name)
    ]
    if absent:
        yield (
            "rocpd.columns-missing",
            Severity.ERROR,
            f"No column {', '.join(absent)}: what it says is unknown; record again with a current "
            "rocprofv3",
            len(absent),
        )
    yield from _faults(capture)


def _faults(capture: Capture) -> Iterator[Found]:
    for problem, (code, message) in _FAULTS.items():
        counts = {key: count for key, count in capture.faults.items() if key[0] == problem}
        if counts:
            places = sorted({f"{table}.{column}" for _, table, column, _ in counts})
            yield code, Severity.DATA_LOSS, message.format(", ".join(places)), sum(counts.values())


def _version(capture: Capture) -> str | None:
    if not capture.has("rocpd_metadata", "tag", "value"):
        return None
    rows = capture.rows("rocpd_metadata", ["value"], "tag = 'schema_version'")
    return None if not rows or rows[0][0] is None else str(rows[0][0])
