"""Reads what a run directory holds beside its trace."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import polars as pl

from tracekit.compare import Side
from tracekit.errors import BadInput
from tracekit.manifest.what_ran import read_what_ran


def side(run: Path, frames: Mapping[str, pl.DataFrame]) -> Side:
    """Return one side of a comparison.

    Args:
        run: Directory of a captured run, or anything else that was read as a trace.
        frames: Results of analyses of its trace.

    Raises:
        BadInput: A file beside the trace is damaged.
    """
    record, client = run / "capture.json", run / "client.json"
    return Side(
        str(run),
        frames,
        _client(client) if client.is_file() else {},
        read_what_ran(record) if record.is_file() else None,
    )


def _client(path: Path) -> dict[str, dict[str, object]]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, object]])
    except msgspec.DecodeError as error:
        problem = f"holds no client metrics ({error})"
        raise BadInput(path, problem, "Capture the run again, or remove the file") from error
