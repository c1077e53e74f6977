"""Where the traces recorded by others on real GPUs are; TRACEKIT_REAL_TRACES overrides it."""

import os
from pathlib import Path

_SIBLING = Path(__file__).resolve().parents[2] / "shared" / "traces"
REAL_TRACES = Path(os.environ.get("TRACEKIT_REAL_TRACES") or _SIBLING)
