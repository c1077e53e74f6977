"""Makes the record of a capture (`tracekit.manifest.what_ran`) and writes it, redacted."""

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tracekit import __version__
from tracekit.capture.load.file import Load
from tracekit.capture.machine import git_state, gpus, host
from tracekit.capture.redaction import Redactor
from tracekit.capture.versions import versions
from tracekit.errors import BadInput, os_problem
from tracekit.manifest import allowed_environment
from tracekit.manifest.what_ran import Gpu, WhatRan

__all__ = [
    "WhatRan",
    "clean_reports",
    "described",
    "probe_result",
    "take_reports",
    "take_server",
    "what_ran",
    "write_what_ran",
]

# What a server counts, or has of its clock, differs from moment to moment and is no trait of it.
_PASSING = {"now_ns", "num_verifies", "num_verified_tokens", "num_running", "num_waiting"}


def what_ran(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: Path | None = None,
    load: Load | Sequence[str] | None = None,
    probe: Path | None = None,
) -> WhatRan:
    """Return the record as it stands before the launch; later stages set its other fields.

    Args:
        command: As the user gave it, before any profiler wraps it.
        environment: Of the server, before hooks and profilers add theirs.
        folder: Where the command runs; the working folder if None.
        load: What will drive it, or the command of a load generator of the user's.
        probe: File with a result of the probe.

    Raises:
        BadInput: The probe's file cannot be read or is no JSON object.
    """
    folder = folder or Path.cwd()
    asked = versions(command, environment)
    return WhatRan(
        run_id=str(uuid.uuid4()),
        tracekit=__version__,
        start_ns=time.time_ns(),
        folder=str(folder),
        command=list(command),
        environment=allowed_environment(environment),
        versions=asked,
        versions_from="the command's interpreter" if asked else "unknown",
        git=git_state(folder),
        host=host(),
        gpus=gpus(),
        load=described(load),
        probe=None if probe is None else probe_result(probe),
    )


def described(load: Load | Sequence[str] | None) -> dict[str, object]:
    """Return a load as the record keeps it."""
    if load is None:
        return {}
    if isinstance(load, Load):
        told = msgspec.json.decode(msgspec.json.encode(load), type=dict[str, object])
        # Whatever a header is called, its value is for the server alone.
        return told | {"headers": sorted(load.headers)}
    return {"command": list(load)}


def probe_result(path: Path) -> dict[str, object]:
    """Return what the probe wrote.

    Raises:
        BadInput: It cannot be read or is no JSON object.
    """
    remedy = "Make it: python -m instrumented_runtime.probe --help"
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        problem = os_problem(error)
        raise BadInput(path, f"cannot be read: {problem}", remedy) from error
    except msgspec.DecodeError as error:
        raise BadInput(path, f"is no result of the probe ({error})", remedy) from error


def take_server(record: WhatRan, base_url: str, headers: Mapping[str, str]) -> None:
    """Add what the server says of itself; a virtual device replaces the machine's GPUs."""
    try:
        url = f"{base_url}/server_info"
        answer = httpx.get(url, headers=dict(headers), timeout=10, trust_env=False)
        told = answer.json()
    except (httpx.HTTPError, ValueError, RecursionError):
        return
    if answer.status_code != httpx.codes.OK or not isinstance(told, dict):
        return  # an error in JSON says nothing of the server
    record.server = {
        name: value
        for name, value in sorted(told.items())
        if (value is None or isinstance(value, str | int | float)) and name not in _PASSING
    }
    record.clock = str(told.get("clock", "wall"))
    if record.clock == "virtual":
        record.gpus = [Gpu(str(told.get("device", "virtual")), None, "the server: a model")]


def take_reports(record: WhatRan, hooks: Path) -> None:
    """Add the reports that hooks wrote into a folder; what they say of versions is from inside."""
    from_inside: dict[str, str] = {}
    for path in sorted(hooks.glob("*.json"), key=lambda path: path.stem.zfill(12)):
        try:
            report: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.DecodeError):
            continue
        record.reports[path.stem] = report
        told = report.get("versions")
        if isinstance(told, dict):
            from_inside |= {str(name): str(value) for name, value in told.items()}
        if isinstance(report.get("python"), str):
            from_inside["python"] = str(report["python"]).split()[0]
    if from_inside:
        record.versions = record.versions | from_inside
        record.versions_from = "reports from inside its processes"


def clean_reports(hooks: Path, redactor: Redactor) -> None:
    """Redact the reports of hooks where they lie, once no process writes them any more."""
    for path in hooks.glob("*.json"):
        try:
            report: Any = msgspec.json.decode(path.read_bytes())
        except msgspec.DecodeError:
            # Half a report says nothing that is worth the risk.
            path.unlink()
            continue
        _replace(path, redacted(report, redactor))


def write_what_ran(record: WhatRan, path: Path, redactor: Redactor) -> None:
    """Write the record with every text redacted, in place of the one before, whole or not at all.

    Only the file is redacted: `record` itself stays as it is.
    """
    _replace(path, redacted(msgspec.to_builtins(record), redactor))


def _replace(path: Path, value: object) -> None:
    sibling = path.with_name(f".{path.name}-{os.getpid()}.partial")
    try:
        sibling.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2))
        sibling.replace(path)
    finally:
        sibling.unlink(missing_ok=True)


def redacted(value: Any, redactor: Redactor) -> Any:  # noqa: ANN401  any JSON value
    """Return a JSON value with every text in it redacted, names of keys as well.

    A list of words is a command line as likely as not: the word after a flag is hidden with it.
    """
    if isinstance(value, str):
        return redactor.text(value)
    if isinstance(value, list):
        words = redactor.words(value) if all(isinstance(one, str) for one in value) else value
        return [redacted(one, redactor) for one in words]
    if isinstance(value, dict):
        return {
            redactor.text(str(name)): redactor.field(str(name), redacted(inner, redactor))
            for name, inner in value.items()
        }
    return value
