"""Which patches that were asked for were applied in no process, and what became of them."""

from collections.abc import Iterable, Mapping
from typing import Any


def unapplied(patches: Iterable[str], reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each patch that no process applied.

    Args:
        patches: Names of those that were asked for.
        reports: Of hooks and patches, by process.
    """
    notes = []
    for name in patches:
        told = _told(name, reports)
        if any(state == "applied" for state, _ in told):
            continue
        # The same is said by every process of a server; that it is refused says more than waiting.
        said = sorted(set(told), key=lambda one: (one[0] == "waiting", one))
        how = "; ".join(f"{state}: {reason}" if reason else state for state, reason in said)
        notes.append(f"patch {name} was applied in no process ({how or 'none reported on it'})")
    return notes


def _told(name: str, reports: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    told = []
    for report in reports.values():
        patches = report.get("patches")
        one = patches.get(name) if isinstance(patches, dict) else None
        if isinstance(one, dict):
            told.append((str(one.get("state", "")), str(one.get("reason", ""))))
    return told
